// SPDX-License-Identifier: Apache-2.0
// The safetensors reader and writer, on files made here.
#define _POSIX_C_SOURCE 200809L
#include "../../tools/safetensors.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[256], path[300], error[600];

static void make_folder(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/clinfer-st-XXXXXX", base && *base ? base : "/tmp");
    cr_assert(mkdtemp(folder), "%s", folder);
    snprintf(path, sizeof(path), "%s/a.safetensors", folder);
}

static void remove_folder(void)
{
    unlink(path);
    cr_assert_eq(rmdir(folder), 0, "something was left in %s", folder);
}

TestSuite(safetensors, .init = make_folder, .fini = remove_folder, .timeout = 60);

static void put(const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(bytes, 1, size, f) == size);
    cr_assert_eq(fclose(f), 0);
}

static size_t get(unsigned char *bytes, size_t size)
{
    FILE *f = fopen(path, "rb");
    cr_assert(f);
    size_t n = fread(bytes, 1, size, f);
    cr_assert(n < size && !ferror(f));
    fclose(f);
    return n;
}

// A file of this header and `data` bytes 0, 1, 2 ...; the length field says `length`.
static void put_header(const char *header, size_t size, size_t data, uint64_t length)
{
    unsigned char *bytes = malloc(8 + size + data);
    cr_assert(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char) (length >> (8 * i));
    memcpy(bytes + 8, header, size);
    for (size_t i = 0; i < data; i++)
        bytes[8 + size + i] = (unsigned char) i;
    put(bytes, 8 + size + data);
    free(bytes);
}

static void refused(const char *name, const char *want)
{
    struct st_file file, empty = { 0 };
    memset(&file, 0xA5, sizeof(file));
    memset(error, 0, sizeof(error));
    cr_assert(!st_read(path, &file, error, sizeof(error)), "%s: was read", name);
    cr_assert(strstr(error, want), "%s: \"%s\" does not say \"%s\"", name, error, want);
    cr_assert(file.tensors == empty.tensors && file.meta == empty.meta && file.blob == empty.blob &&
                  !file.num_tensors && !file.num_meta,
              "%s: the file is not empty", name);
}

static void write_ok(const struct st_file *file)
{
    cr_assert(st_write(path, file, error, sizeof(error)), "%s", error);
}

static int files_in_folder(void)
{
    int n = 0;
    DIR *dir = opendir(folder);
    cr_assert(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2;
}

static unsigned char bytes64[64] = { 1, 2, 3, 250, 251, 252, 0, 255, 128, 127 };
static struct st_tensor sample[] = {
    { "bytes", CLINFER_F8_E4M3, 1, { 3 }, 3, bytes64 },
    { "scalar", CLINFER_U32, 0, { 0 }, 4, bytes64 + 1 },
    { "none", CLINFER_F32, 3, { 4, 0, 7 }, 0, NULL },
    { "half", CLINFER_F16, 2, { 2, 3 }, 12, bytes64 + 2 },
    { "brain\n\"\\\x1b \xc3\xa9\xf0\x9f\x98\x80", CLINFER_BF16, 8, { 1, 2, 1, 1, 1, 2, 1, 1 }, 8, bytes64 },
    { "", CLINFER_F32, 1, { 16 }, 64, bytes64 },
    { "none either", CLINFER_BF16, 1, { 0 }, 0, NULL },
};
static struct st_meta sample_meta[] = { { "op", "rms_norm" },
                                        { "", "" },
                                        { "tab\t", "\x7f\xef\xbf\xbf/\"" } };
enum { NUM_SAMPLE = sizeof(sample) / sizeof(sample[0]) };
static const struct st_file all = { sample, NUM_SAMPLE, sample_meta, 3, NULL };

Test(safetensors, round_trip)
{
    struct st_file file;
    write_ok(&all);
    cr_assert(st_read(path, &file, error, sizeof(error)), "%s", error);
    cr_assert_eq(file.num_tensors, NUM_SAMPLE);
    for (int i = 0; i < NUM_SAMPLE; i++) {
        const struct st_tensor *a = &sample[i], *b = &file.tensors[i];
        cr_assert_str_eq(a->name, b->name);
        cr_assert(a->dtype == b->dtype && a->rank == b->rank && a->bytes == b->bytes, "%s", a->name);
        cr_assert(!memcmp(a->shape, b->shape, sizeof(a->shape)), "%s", a->name);
        cr_assert(b->data && (uintptr_t) b->data % 64 == 0, "%s", a->name);
        cr_assert(!a->bytes || !memcmp(a->data, b->data, a->bytes), "%s", a->name);
        cr_assert_eq(st_find(&file, a->name), b);
    }
    cr_assert_null(st_find(&file, "half2"));
    cr_assert_eq(file.num_meta, 3);
    for (int i = 0; i < 3; i++)
        cr_assert_str_eq(st_meta_get(&file, sample_meta[i].key), sample_meta[i].value);
    cr_assert_null(st_meta_get(&file, "o"));

    unsigned char first[1024], second[1024];
    size_t n = get(first, sizeof(first));
    cr_assert_eq(first[0] % 8, 0);
    write_ok(&file);
    cr_assert_eq(get(second, sizeof(second)), n);
    cr_assert(!memcmp(first, second, n));
    st_free(&file);
    cr_assert(!file.tensors && !file.num_tensors);
    st_free(&file);
    cr_assert_eq(files_in_folder(), 1);
}

Test(safetensors, nothing_in_it)
{
    struct st_file file, none = { 0 };
    write_ok(&none);
    cr_assert(st_read(path, &file, error, sizeof(error)), "%s", error);
    cr_assert(file.num_tensors == 0 && file.num_meta == 0 && !st_find(&file, "x") &&
              !st_meta_get(&file, "x"));
    st_free(&file);
}

#define TEXT(...) __VA_ARGS__, sizeof(__VA_ARGS__) - 1
#define X(rest)   "{\"x\":{" rest "}}"
#define Y(type, shape, begin, end)                                                                           \
    "{\"dtype\":\"" type "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"
#define ONE(type, shape, begin, end) "{\"x\":" Y(type, shape, begin, end) "}"
#define TWO(a, b)                    "{\"x\":" a ",\"y\":" b "}"
#define META(value)                  "{\"__metadata__\":" value "}"

static const struct {
    const char *name, *header;
    size_t size, data;
    int tensors;
} valid[] = {
    { "spaces", TEXT("{}   "), 0, 0 },
    { "unpadded", TEXT(ONE("U32", "2", 0, 8)), 8, 1 },
    { "white space inside", TEXT("{ \"x\"\t: \n" Y("F32", " 1 ,\r1", 0, 4) "\n}  "), 4, 1 },
    { "other order", TEXT(TWO(Y("F32", "1", 4, 8), Y("F32", "1", 0, 4))), 8, 2 },
    { "empty within another", TEXT(TWO(Y("F32", "2", 0, 8), Y("F32", "0", 3, 3))), 8, 2 },
    { "empty at the end", TEXT(TWO(Y("F32", "2", 0, 8), Y("F32", "0,9007199254740992", 8, 8))), 8, 2 },
    { "fields in any order", TEXT(X("\"data_offsets\":[0,1],\"shape\":[],\"dtype\":\"F8_E4M3\"")), 1, 1 },
    { "escaped key", TEXT("{\"\\u00e9\\ud83d\\ude00\":" Y("F16", "1", 0, 2) "}"), 2, 1 },
    { "escaped field", TEXT(X("\"d\\u0074ype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]")), 4, 1 },
    { "metadata only", TEXT(META("{\"a\":\"b\",\"A\":\"b\"}")), 0, 0 },
};

Test(safetensors, valid)
{
    for (size_t i = 0; i < sizeof(valid) / sizeof(valid[0]); i++) {
        struct st_file file;
        put_header(valid[i].header, valid[i].size, valid[i].data, valid[i].size);
        cr_assert(st_read(path, &file, error, sizeof(error)), "%s: %s", valid[i].name, error);
        cr_assert_eq(file.num_tensors, valid[i].tensors, "%s", valid[i].name);
        st_free(&file);
    }
    struct st_file file;
    put_header(valid[3].header, valid[3].size, 8, valid[3].size);
    cr_assert(st_read(path, &file, error, sizeof(error)), "%s", error);
    cr_assert(st_find(&file, "x")->data[0] == 4 && st_find(&file, "y")->data[3] == 3);
    st_free(&file);
}

static const struct {
    const char *name, *header;
    size_t size, data;
    const char *want;
} damaged[] = {
    { "no header", TEXT(""), 0, "0 bytes starts with byte 0x00" },
    { "leading space", TEXT(" {}"), 0, "starts with byte 0x20, not 0x7b" },
    { "byte order mark", TEXT("\xef\xbb\xbf{}"), 0, "0xef" },
    { "an array", TEXT("[]"), 0, "0x5b" },
    { "open", TEXT("{"), 0, "string in quotes was expected, at byte 1 of 1" },
    { "open key", TEXT("{\"x"), 0, "without an end" },
    { "no colon", TEXT("{\"x\" 1}"), 0, "\"x\": a colon" },
    { "no value", TEXT("{\"x\":}"), 0, "\"x\": an object, array" },
    { "trailing comma", TEXT("{\"x\":\"\",}"), 0, "string in quotes" },
    { "array's trailing comma", TEXT("{\"x\":[1,]}"), 0, "\"x\": an object, array" },
    { "no comma", TEXT("{\"x\":\"\" \"y\":\"\"}"), 0, "\"x\": a comma or }" },
    { "wrong bracket", TEXT("{\"x\":[1}}"), 0, "\"x\": a comma or ]" },
    { "true", TEXT("{\"x\":true}"), 0, "\"x\": an object, array" },
    { "null", TEXT("{\"x\":null}"), 0, "\"x\": an object, array" },
    { "bare word", TEXT("{x:1}"), 0, "string in quotes" },
    { "comment", TEXT("{/**/}"), 0, "string in quotes" },
    { "form feed", TEXT("{\f}"), 0, "string in quotes" },
    { "two values", TEXT("{}{}"), 0, "spaces after the JSON, at byte 2 of 4" },
    { "tab after", TEXT("{}\t"), 0, "spaces after the JSON" },
    { "NUL after", TEXT("{}\0\0"), 0, "spaces after the JSON" },
    { "NUL inside", TEXT("{\0}"), 0, "string in quotes" },
    { "NUL in a key", TEXT("{\"x\0\":1}"), 0, "a NUL in a string" },
    { "escaped NUL", TEXT("{\"x\\u0000\":1}"), 0, "a NUL in a string" },
    { "control character", TEXT("{\"x\n\":1}"), 0, "control character" },
    { "unknown escape", TEXT("{\"\\x41\":1}"), 0, "unknown escape" },
    { "escape at the end", TEXT("{\"\\"), 0, "unknown escape" },
    { "short \\u", TEXT("{\"\\u12g4\":1}"), 0, "four hexadecimal" },
    { "cut \\u", TEXT("{\"\\u12"), 0, "four hexadecimal" },
    { "lone high surrogate", TEXT("{\"\\ud800x\":1}"), 0, "surrogate" },
    { "lone low surrogate", TEXT("{\"\\udc00\\ud800\":1}"), 0, "surrogate" },
    { "two high surrogates", TEXT("{\"\\ud800\\ud800\":1}"), 0, "surrogate" },
    { "stray continuation", TEXT("{\"\x80\":1}"), 0, "UTF-8, at byte 2 of 7" },
    { "overlong", TEXT("{\"\xc0\xaf\":1}"), 0, "UTF-8" },
    { "overlong of 3", TEXT("{\"\xe0\x9f\xbf\":1}"), 0, "UTF-8" },
    { "overlong of 4", TEXT("{\"\xf0\x8f\xbf\xbf\":1}"), 0, "UTF-8" },
    { "surrogate in UTF-8", TEXT("{\"\xed\xa0\x80\":1}"), 0, "UTF-8" },
    { "past U+10FFFF", TEXT("{\"\xf4\x90\x80\x80\":1}"), 0, "UTF-8" },
    { "cut sequence", TEXT("{\"\xe2\x82"), 0, "UTF-8" },
    { "broken sequence", TEXT("{\"\xe2\x82\":1}"), 0, "UTF-8" },
    { "byte 0xff", TEXT("{\"x\":\"\xff\"}"), 0, "\"x\": invalid UTF-8" },
    { "duplicate tensor", TEXT("{\"x\":" Y("F32", "1", 0, 4) ",\"x\":" Y("F32", "1", 4, 8) "}"), 8,
      "duplicate key \"x\"" },
    { "escaped duplicate", TEXT("{\"x\":" Y("F32", "1", 0, 4) ",\"\\u0078\":" Y("F32", "1", 4, 8) "}"), 8,
      "duplicate key \"x\"" },
    { "duplicate metadata", TEXT("{\"__metadata__\":{},\"__metadata__\":{}}"), 0,
      "duplicate key \"__metadata__\"" },
    { "duplicate in metadata", TEXT(META("{\"a\":\"\",\"b\":\"\",\"a\":\"\"}")), 0,
      "__metadata__: duplicate key \"a\"" },
    { "duplicate field", TEXT(X("\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]")), 4,
      "tensor \"x\": duplicate key \"shape\"" },
    { "unknown field", TEXT(X("\"dtype\":\"F32\",\"shape\":[1],\"offset\":[0,4]")), 4,
      "tensor \"x\": unknown key \"offset\"" },
    { "upper case field", TEXT(X("\"DTYPE\":\"F32\"")), 0, "unknown key \"DTYPE\"" },
    { "no dtype", TEXT(X("\"shape\":[1],\"data_offsets\":[0,4]")), 4, "tensor \"x\": no dtype" },
    { "no shape", TEXT(X("\"dtype\":\"F32\",\"data_offsets\":[0,4]")), 4, "tensor \"x\": no shape" },
    { "no offsets", TEXT(X("\"dtype\":\"F32\",\"shape\":[1]")), 4, "tensor \"x\": no data_offsets" },
    { "tensor a string", TEXT("{\"x\":\"F32\"}"), 0, "tensor \"x\" is not an object" },
    { "tensor an array", TEXT("{\"x\":[0]}"), 0, "tensor \"x\" is not an object" },
    { "dtype a number", TEXT(X("\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]")), 4,
      "tensor \"x\": dtype is not a string" },
    { "fnuz", TEXT(ONE("F8_E4M3FNUZ", "4", 0, 4)), 4,
      "tensor \"x\": type \"F8_E4M3FNUZ\" is not one of F32 F16 BF16 F8_E4M3 U32" },
    { "I64", TEXT(ONE("I64", "1", 0, 8)), 8, "tensor \"x\": type \"I64\"" },
    { "lower case type", TEXT(ONE("f32", "1", 0, 4)), 4, "tensor \"x\": type \"f32\"" },
    { "shape a number", TEXT(X("\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]")), 4,
      "tensor \"x\": shape is not" },
    { "shape an object", TEXT(X("\"dtype\":\"F32\",\"shape\":{\"a\":1},\"data_offsets\":[0,4]")), 4,
      "tensor \"x\": shape is not" },
    { "extent a string", TEXT(ONE("F32", "\"1\"", 0, 4)), 4, "tensor \"x\": shape is not" },
    { "rank 9", TEXT(ONE("F32", "1,1,1,1,1,1,1,1,1", 0, 4)), 4,
      "tensor \"x\": shape is not an array of 0 to 8" },
    { "negative", TEXT(ONE("F32", "-1", 0, 4)), 4, "\"x\": number -1 is not" },
    { "minus zero", TEXT(ONE("F32", "-0", 0, 0)), 0, "\"x\": number -0 is not" },
    { "plus", TEXT(ONE("F32", "+1", 0, 4)), 4, "\"x\": number +1 is not" },
    { "fraction", TEXT(ONE("F32", "1.0", 0, 4)), 4, "\"x\": number 1.0 is not" },
    { "exponent", TEXT(ONE("F32", "1e0", 0, 4)), 4, "\"x\": number 1e0 is not" },
    { "leading zero", TEXT(ONE("F32", "01", 0, 4)), 4, "\"x\": number 01 is not" },
    { "hexadecimal", TEXT(ONE("F32", "0x1", 0, 4)), 4, "\"x\": a comma or ]" },
    { "dot first", TEXT(ONE("F32", ".1", 0, 4)), 4, "\"x\": number .1 is not" },
    { "NaN", TEXT(ONE("F32", "NaN", 0, 4)), 4, "\"x\": an object, array" },
    { "2^53 + 1", TEXT(ONE("F32", "9007199254740993", 0, 4)), 4,
      "number 9007199254740993 is not a plain whole number from 0 to 9007199254740992" },
    { "2^64 + 1", TEXT(ONE("F32", "18446744073709551617", 0, 4)), 4, "number 18446744073709551617 is not" },
    { "long number", TEXT(ONE("F32", "1000000000000000000000000000000000000000", 0, 4)), 4,
      "number 100000000000000000000000 is not" },
    { "product 2^64 + 4", TEXT(ONE("F32", "4294967296,4294967296", 0, 4)), 4,
      "tensor \"x\": shape overflows" },
    { "product past 2^53", TEXT(ONE("U32", "2251799813685249", 0, 4)), 4,
      "shape overflows: 4 bytes times axis 0, 2251799813685249" },
    { "offset past 2^53", TEXT(ONE("F32", "1", 0, 9007199254740993)), 4, "\"x\": number 9007199254740993" },
    { "one offset", TEXT(X("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]")), 4,
      "tensor \"x\": data_offsets is not" },
    { "three offsets", TEXT(X("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]")), 4,
      "tensor \"x\": data_offsets is not" },
    { "backwards", TEXT(ONE("F32", "1", 4, 0)), 4,
      "tensor \"x\": data_offsets begin at 4, past their end 0" },
    { "past the data", TEXT(ONE("F32", "2", 0, 8)), 7,
      "tensor \"x\": data_offsets end at 8, but the data has 7 bytes" },
    { "empty past the data", TEXT(ONE("F32", "0", 1, 1)), 0, "tensor \"x\": data_offsets end at 1" },
    { "shape too small", TEXT(ONE("F32", "1", 0, 8)), 8,
      "tensor \"x\": shape and type need 4 bytes, data_offsets span 8" },
    { "shape too large", TEXT(ONE("BF16", "5", 0, 8)), 8, "need 10 bytes, data_offsets span 8" },
    { "scalar of 8", TEXT(ONE("U32", "", 0, 8)), 8, "need 4 bytes, data_offsets span 8" },
    { "overlap", TEXT(TWO(Y("F32", "2", 0, 8), Y("F32", "1", 4, 8))), 8,
      "\"x\" and \"y\" overlap: one ends at 8, the other begins at 4" },
    { "same range", TEXT(TWO(Y("F32", "2", 0, 8), Y("U32", "2", 0, 8))), 8, "overlap" },
    { "gap at the front", TEXT(ONE("F32", "1", 4, 8)), 8,
      "gap before tensor \"x\": it begins at 4, the data so far ends at 0" },
    { "gap", TEXT(TWO(Y("F32", "1", 0, 4), Y("F32", "1", 8, 12))), 12,
      "gap before tensor \"y\": it begins at 8" },
    { "left over", TEXT(ONE("F32", "1", 0, 4)), 5, "tensors end at 4, but the data has 5 bytes" },
    { "data without tensors", TEXT("{}"), 1, "tensors end at 0, but the data has 1 bytes" },
    { "metadata a string", TEXT(META("\"a\"")), 0, "__metadata__ is not an object" },
    { "metadata with a number", TEXT(META("{\"a\":1}")), 0,
      "__metadata__: the value of \"a\" is not a string" },
    { "metadata nested", TEXT(META("{\"a\":{}}")), 0, "__metadata__: the value of \"a\" is not a string" },
    { "escape sequence in a name", TEXT("{\"\\u001b[2J\":[]}"), 0, "tensor \"?[2J\"" },
};

Test(safetensors, damaged)
{
    for (size_t i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++) {
        put_header(damaged[i].header, damaged[i].size, damaged[i].data, damaged[i].size);
        refused(damaged[i].name, damaged[i].want);
    }
}

Test(safetensors, header_length)
{
    put("", 0);
    refused("empty file", "the file has 0 bytes, a header length takes 8");
    put("\2\0\0\0\0\0\0", 7);
    refused("7 bytes", "the file has 7 bytes");
    put_header("{}", 2, 0, 3);
    refused("one too long", "the header length is 3 bytes, 2 follow it");
    put_header("{}", 2, 0, 1);
    refused("one too short", "string in quotes");
    put_header("{}", 2, 0, 100000001);
    refused("past the limit", "the header length is 100000001 bytes, at most 100000000");
    put_header("{}", 2, 0, UINT64_MAX);
    refused("the largest", "18446744073709551615 bytes");
    put_header("{}", 2, 0, UINT64_MAX - 7);
    refused("wraps around", "18446744073709551608 bytes");
}

static void deep(const char *name, const char *open, size_t times)
{
    size_t n = strlen(open);
    char *header = malloc(n * times + 5);
    cr_assert(header);
    memcpy(header, "{\"x\":", 5);
    for (size_t i = 0; i < times; i++)
        memcpy(header + 5 + i * n, open, n);
    put_header(header, 5 + n * times, 0, 5 + n * times);
    free(header);
    refused(name, "\"x\": nested too deep");
}

Test(safetensors, depth)
{
    deep("arrays", "[", 2000000);
    deep("objects", "{\"a\":", 1000000);
    deep("both", "[{\"a\":", 16);
}

// Quadratic work over the keys would run into the time limit.
Test(safetensors, many_tensors, .timeout = 30)
{
    enum { N = 100000 };
    struct st_file file, many = { calloc(N, sizeof(struct st_tensor)), N, NULL, 0, NULL };
    char *names = malloc(N * 12);
    cr_assert(many.tensors && names);
    for (int i = 0; i < N; i++) {
        snprintf(names + i * 12, 12, "%d", i);
        many.tensors[i] =
            (struct st_tensor){ names + i * 12, CLINFER_F8_E4M3, 0, { 0 }, 1, bytes64 + i % 64 };
    }
    write_ok(&many);
    cr_assert(st_read(path, &file, error, sizeof(error)), "%s", error);
    cr_assert(file.num_tensors == N && *file.tensors[N - 1].data == bytes64[(N - 1) % 64]);
    st_free(&file);
    free(many.tensors);
    free(names);
}

Test(safetensors, truncated)
{
    unsigned char bytes[1024];
    write_ok(&all);
    size_t n = get(bytes, sizeof(bytes));
    for (size_t i = 0; i < n; i++) {
        put(bytes, i);
        refused("truncated", path);
    }
    put(bytes, n + 1);
    refused("one byte more", "bytes");
}

Test(safetensors, flipped)
{
    unsigned char bytes[1024];
    write_ok(&all);
    size_t n = get(bytes, sizeof(bytes)), header = 8 + bytes[0] + 256u * bytes[1], read = 0;
    for (size_t bit = 0; bit < header * 8; bit++) {
        struct st_file file;
        size_t total = 0;
        bytes[bit / 8] ^= (unsigned char) (1 << bit % 8);
        put(bytes, n);
        bytes[bit / 8] ^= (unsigned char) (1 << bit % 8);
        *error = 0;
        if (!st_read(path, &file, error, sizeof(error))) {
            cr_assert(*error, "bit %zu", bit);
            continue;
        }
        for (int i = 0; i < file.num_tensors; i++)
            total += file.tensors[i].bytes;
        cr_assert_eq(total, n - header, "bit %zu", bit);
        st_free(&file);
        read++;
    }
    cr_assert(read > 0 && read < header * 8, "%zu of %zu", read, header * 8);
}

Test(safetensors, not_a_file)
{
    char kept[sizeof(path)];
    memcpy(kept, path, sizeof(path));
    refused("absent", "cannot open: No such file");
    cr_assert_eq(mkfifo(path, 0600), 0);
    refused("FIFO", "not a regular file");
    cr_assert(!st_write(path, &all, error, sizeof(error)) && strstr(error, "not a regular file"), "%s",
              error);
    unlink(path);
    cr_assert_eq(symlink(path, path), 0);
    refused("symlink to itself", "cannot open");
    memcpy(path, folder, sizeof(folder));
    refused("folder", "not a regular file");
    cr_assert(!st_write(path, &all, error, sizeof(error)) && strstr(error, "not a regular file"), "%s",
              error);
    strcpy(path, "/dev/zero");
    refused("device", "/dev/zero: not a regular file");
    memcpy(path, kept, sizeof(path));
}

// A message of any room ends where it must, and keeps the reason under a long path.
Test(safetensors, message_room)
{
    struct st_file file;
    char small[8], name[4000], tail[] = "File name too long";
    memset(small, 'z', sizeof(small));
    cr_assert(!st_read(path, &file, small, 4) && strlen(small) == 3 && small[4] == 'z');
    cr_assert(!st_read(path, &file, NULL, 0));
    memset(name, 'n', sizeof(name));
    name[sizeof(name) - 1] = 0;
    cr_assert(!st_read(name, &file, error, 160) && strstr(error, tail), "%s", error);
}

static void not_written(const char *want)
{
    unlink(path);
    cr_assert(!st_write(path, &all, error, sizeof(error)), "%s: was written", want);
    cr_assert(strstr(error, want), "\"%s\" does not say \"%s\"", error, want);
    cr_assert_eq(files_in_folder(), 0);
}

Test(safetensors, writer_refuses)
{
#define WITH(field, value, want)                                                                             \
    do {                                                                                                     \
        struct st_tensor kept = sample[0];                                                                   \
        sample[0].field = value;                                                                             \
        not_written(want);                                                                                   \
        sample[0] = kept;                                                                                    \
    } while (0)
    WITH(name, NULL, "tensor 0 of 7 has no name");
    WITH(name, "half", "duplicate key \"half\"");
    WITH(name, "__metadata__", "duplicate key \"__metadata__\"");
    WITH(name, "\xff", "invalid UTF-8");
    WITH(dtype, (clinfer_dtype) 0, "tensor \"bytes\": type 0");
    WITH(dtype, CLINFER_F16, "need 6 bytes, data_offsets span 3");
    WITH(rank, -1, "tensor \"bytes\": rank -1");
    WITH(rank, 9, "tensor \"bytes\": rank 9 is not 0 to 8");
    WITH(shape[0], -3, "\"bytes\": number -3");
    WITH(shape[0], INT64_MAX, "number 9223372036854775807");
    WITH(bytes, 4, "need 3 bytes, data_offsets span 4");
    WITH(bytes, SIZE_MAX, "past what offsets hold");
    WITH(data, NULL, "3 bytes, but no data");
    sample_meta[0].value = NULL;
    not_written("metadata 0 of 3");
    sample_meta[0].value = "\x80";
    not_written("invalid UTF-8");
    sample_meta[0] = sample_meta[1];
    not_written("__metadata__: duplicate key \"\"");
}

// In a child: 1 where st_write failed with this in its message, and left `files` files.
static int try_write(const char *want, int files)
{
    if (st_write(path, &all, error, sizeof(error)))
        return 2;
    if (!strstr(error, want)) {
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", error, want);
        return 3;
    }
    return files < 0 || files_in_folder() == files ? 1 : 4;
}

static int status_of(pid_t child)
{
    int status = 0;
    cr_assert(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

Test(safetensors, disk_full)
{
    unsigned char before[1024], after[1024];
    write_ok(&all);
    size_t n = get(before, sizeof(before));
    // Nothing fits; a part of the header; the header but not all of the data; all but the last byte.
    const size_t limits[] = { 0, 100, 8 + before[0] + 256u * before[1] + 5, n - 1 };
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (!child) {
            struct rlimit limit = { limits[i], limits[i] };
            signal(SIGXFSZ, SIG_IGN);
            _exit(setrlimit(RLIMIT_FSIZE, &limit) ? 5 : try_write("File too large after", 1));
        }
        cr_assert_eq(status_of(child), 1, "limit %zu", limits[i]);
        cr_assert(get(after, sizeof(after)) == n && !memcmp(before, after, n), "limit %zu", limits[i]);
    }
}

Test(safetensors, writer_folders)
{
    char kept[sizeof(path)];
    memcpy(kept, path, sizeof(path));
    snprintf(path, sizeof(path), "%s/no/a", folder);
    cr_assert_eq(try_write("no/a: cannot create a file in its folder: No such file", 0), 1);
    snprintf(path, sizeof(path), "%s/", folder);
    cr_assert_eq(try_write("not a regular file", 0), 1);
    cr_assert_eq(chdir(folder), 0);
    path[0] = 0;
    cr_assert_eq(try_write("cannot rename", 0), 1);
    strcpy(path, "b");
    write_ok(&all);
    cr_assert_eq(files_in_folder(), 1);
    unlink(path);
    memcpy(path, kept, sizeof(path));

    cr_assert_eq(chmod(folder, 0555), 0);
    pid_t child = fork();
    if (!child) {
        if (geteuid() == 0 && setuid(65534)) // root writes everywhere
            _exit(6);
        _exit(try_write("cannot create a file in its folder: Permission denied", -1));
    }
    int status = status_of(child);
    cr_assert(status == 1 || status == 6, "%d", status); // 6: there is no other user to be
    cr_assert_eq(files_in_folder(), 0);
    chmod(folder, 0700);
}

// The file gets the mode that the umask leaves, and a name as long as the system allows.
Test(safetensors, writer_mode_and_long_name)
{
    struct stat st;
    char *name = path + strlen(folder) + 1;
    static char longest[600];
    umask(027);
    write_ok(&all);
    cr_assert(!stat(path, &st) && (st.st_mode & 0777) == 0640, "%o", (unsigned) st.st_mode);
    snprintf(longest, sizeof(longest), "%.*s%0255d", (int) (name - path), path, 0);
    cr_assert(st_write(longest, &all, error, sizeof(error)), "%s", error);
    unlink(longest);
}
