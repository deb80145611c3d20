// SPDX-License-Identifier: Apache-2.0
#include "sampler.h"

#include <math.h>
#include <stdlib.h>

// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (2014): SplitMix64.
static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

void sampler_init(struct sampler *sampler, double temperature, double top_p, uint64_t seed, uint64_t stream)
{
    *sampler = (struct sampler){ temperature, top_p, seed };
    if (stream) { // mixed one after the other: seed and stream do not change places
        uint64_t state = splitmix(&sampler->state) + stream;
        sampler->state = splitmix(&state);
    }
}

double sampler_uniform(struct sampler *sampler)
{
    return (double) (splitmix(&sampler->state) >> 11) * 0x1p-53;
}

double sampler_exp(double x)
{
    // ln 2 in two parts, of which multiples of the first are exact.
    const double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;
    enum { TERMS = 14 };
    if (!(x > -700))
        return 0;
    const double k = floor(x / (ln2_high + ln2_low) + 0.5);
    const double r = (x - k * ln2_high) - k * ln2_low; // at most ln 2 / 2
    double sum = 1;
    for (int i = TERMS; i > 0; i--)
        sum = 1 + r * sum / i;
    return ldexp(sum, (int) k);
}

struct candidate {
    uint32_t token;
    double p;
};

static int by_probability(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

// The first of the largest logits.
static bool find_largest(const float *logits, size_t n, uint32_t *token, struct error *error)
{
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return fail(error, "the logit of token %zu is %g", i, (double) logits[i]);
        if (logits[i] > logits[best])
            best = i;
    }
    if (!n || logits[best] == -INFINITY)
        return fail(error, "none of %zu tokens has a logit above -infinity", n);
    *token = (uint32_t) best;
    return true;
}

// The fewest candidates that reach top_p of *total, moved to the front; *total becomes their sum. None where
// the best alone is more than that.
static size_t nucleus(struct candidate *c, size_t n, double top_p, double *total)
{
    // All below this share together do not reach 1 - top_p: none of them is needed, and few are left to sort.
    const double least = n > 1 ? (1 - top_p) / (double) (n - 1) * *total : 0, goal = top_p * *total;
    size_t kept = 0, taken = 0;
    for (size_t i = 0; i < n; i++)
        if (c[i].p >= least)
            c[kept++] = c[i];
    qsort(c, kept, sizeof *c, by_probability);
    for (*total = 0; taken < kept && *total < goal; taken++)
        *total += c[taken].p;
    return taken;
}

bool sampler_pick(struct sampler *sampler, const float *logits, size_t n, uint32_t *token,
                  struct error *error)
{
    uint32_t best = 0;
    if (!find_largest(logits, n, &best, error))
        return false;
    *token = best;
    if (sampler->temperature == 0)
        return true;
    struct candidate *c = malloc(n * sizeof *c);
    if (!c)
        return fail(error, "out of memory for %zu logits", n);
    double total = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        const double below = (double) logits[i] - (double) logits[best];
        c[i] = (struct candidate){ (uint32_t) i, sampler_exp(below / sampler->temperature) };
        total += c[i].p;
    }
    if (sampler->top_p < 1)
        n = nucleus(c, n, sampler->top_p, &total);
    const double at = sampler_uniform(sampler) * total;
    for (size_t i = 0; i < n && sum <= at; i++) {
        sum += c[i].p;
        if (c[i].p > 0)
            *token = c[i].token;
    }
    free(c);
    return true;
}
