// SPDX-License-Identifier: Apache-2.0
#include "sampler.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(sampler, .timeout = 60);

static struct error error;

static uint32_t pick(struct sampler *s, const float *logits, size_t n)
{
    uint32_t token = UINT32_MAX;
    cr_assert(sampler_pick(s, logits, n, &token, &error), "%s", error.text);
    cr_assert_lt(token, n);
    return token;
}

// The first numbers of SplitMix64 from 1234567, as published with several implementations.
Test(sampler, published_numbers)
{
    const uint64_t want[] = { UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                              UINT64_C(9817491932198370423), UINT64_C(4593380528125082431),
                              UINT64_C(16408922859458223821) };
    struct sampler s;
    sampler_init(&s, 1, 1, 1234567, 0);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(sampler_uniform(&s), (double) (want[i] >> 11) / 9007199254740992.0);
}

Test(sampler, exponential)
{
    cr_assert_eq(sampler_exp(0), 1);
    cr_assert_eq(sampler_exp(-INFINITY), 0);
    cr_assert_eq(sampler_exp(-701), 0);
    for (int i = 1; i < 7000; i++) {
        const double x = -0.0999371 * i, want = exp(x);
        cr_assert_float_eq(sampler_exp(x), want, 1e-15 * want, "e^%g: %.17g, want %.17g", x, sampler_exp(x),
                           want);
    }
}

Test(sampler, greedy)
{
    struct sampler s;
    const float logits[] = { -INFINITY, -2, 3, 1, 3, 3 }, one[] = { -1e30f };
    sampler_init(&s, 0, 1, 5, 0);
    cr_assert_eq(pick(&s, logits, 6), 2);
    cr_assert_eq(pick(&s, logits, 2), 1);
    cr_assert_eq(pick(&s, one, 1), 0);
}

Test(sampler, bad_logits)
{
    for (int greedy = 0; greedy < 2; greedy++) {
        struct sampler s;
        uint32_t token = 77;
        float logits[] = { 1, 2, NAN, 3 };
        const float none[] = { -INFINITY, -INFINITY };
        sampler_init(&s, greedy ? 0 : 1, 0.5, 5, 0);
        cr_assert(!sampler_pick(&s, logits, 4, &token, &error));
        cr_assert(strstr(error.text, "the logit of token 2 is") && strstr(error.text, "nan"), "%s",
                  error.text);
        logits[0] = NAN;
        cr_assert(!sampler_pick(&s, logits, 4, &token, &error) && strstr(error.text, "token 0"));
        logits[0] = INFINITY;
        cr_assert(!sampler_pick(&s, logits, 2, &token, &error) && strstr(error.text, "token 0 is inf"));
        cr_assert(!sampler_pick(&s, none, 2, &token, &error) && strstr(error.text, "none of 2 tokens"));
        cr_assert(!sampler_pick(&s, none, 0, &token, &error));
        cr_assert_eq(token, 77);
    }
}

// Frequencies, of which each is within five of its standard deviations.
static void frequencies(double temperature, double top_p, const float *logits, const double *want, size_t n)
{
    enum { DRAWS = 20000 };
    int counts[8] = { 0 };
    struct sampler s;
    sampler_init(&s, temperature, top_p, 42, 1);
    for (int i = 0; i < DRAWS; i++)
        counts[pick(&s, logits, n)]++;
    for (size_t i = 0; i < n; i++) {
        const double deviation = sqrt(DRAWS * want[i] * (1 - want[i]));
        cr_assert(fabs(counts[i] - DRAWS * want[i]) <= 5 * deviation,
                  "token %zu of top_p %g: %d, want %g +- %g", i, top_p, counts[i], DRAWS * want[i],
                  deviation);
    }
}

Test(sampler, distribution)
{
    // Probabilities 0.1, 0.4, 0.2, 0, 0.2, 0.1.
    const float logits[] = { 0, logf(4), logf(2), -INFINITY, logf(2), 0 };
    frequencies(1, 1, logits, (double[]){ 0.1, 0.4, 0.2, 0, 0.2, 0.1 }, 6);
    // At half the temperature the squares: 1, 16, 4, 4, 1 of 26.
    frequencies(0.5, 1, logits, (double[]){ 1 / 26., 16 / 26., 4 / 26., 0, 4 / 26., 1 / 26. }, 6);
    // The fewest that reach top_p, of equals the first.
    frequencies(1, 0.39, logits, (double[]){ 0, 1, 0, 0, 0, 0 }, 6);
    frequencies(1, 0.41, logits, (double[]){ 0, 4 / 6., 2 / 6., 0, 0, 0 }, 6);
    frequencies(1, 0.7, logits, (double[]){ 0, 0.5, 0.25, 0, 0.25, 0 }, 6);
    frequencies(1, 0.85, logits, (double[]){ 1 / 9., 4 / 9., 2 / 9., 0, 2 / 9., 0 }, 6);
    // Less than the share of any token: still one of them.
    frequencies(1, 0.01, (float[]){ 1, 1, 1, 1 }, (double[]){ 1, 0, 0, 0 }, 4);
    frequencies(1, 0.6, (float[]){ 1, 1, 1, 1 }, (double[]){ 1 / 3., 1 / 3., 1 / 3., 0 }, 4);
}

// A given seed gives these tokens on every machine; another stream gives others.
Test(sampler, same_everywhere)
{
    const uint32_t want[] = { 75, 607, 951, 815, 778, 605, 64, 297, 408, 470, 173, 247, 631, 852, 692, 482 };
    enum { N = sizeof want / sizeof want[0] };
    float logits[1000];
    struct sampler a, b;
    int same = 0;
    for (int i = 0; i < 1000; i++)
        logits[i] = (float) (i * 7919 % 1000) / 100;
    sampler_init(&a, 0.8, 0.95, 12345, 7);
    sampler_init(&b, 0.8, 0.95, 7, 12345);
    cr_assert_neq(a.state, b.state, "seed and stream change places");
    sampler_init(&b, 0.8, 0.95, 12345, 8);
    for (int i = 0; i < N; i++) {
        const uint32_t token = pick(&a, logits, 1000);
        cr_assert_eq(token, want[i], "pick %d is %u, want %u", i, token, want[i]);
        same += pick(&b, logits, 1000) == token;
    }
    cr_assert_lt(same, 3);
}
