/* mhla convert: a checkpoint written with another type, or as other files. */
#include <errno.h>
#include <mhla/lm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char *dtype, *shard_size;
static int json;

static const cli_option options[] = {
    {"dtype", CLI_TEXT, &dtype, "TYPE", "float32, bfloat16, float16, or q8_0 (.gguf); default: each tensor's own"},
    {"shard-size", CLI_TEXT, &shard_size, "BYTES", "at most BYTES of tensors per file; also 500MB, 5GB"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {0},
};
static const cli_usage usage = {
    .verb = "convert",
    .arguments = "IN OUT",
    .options = options,
    .text = "Writes the tensors of IN, a safetensors file, an index, a folder with either, a run or\n"
            "a PyTorch checkpoint (.pth, .pt, .bin), under the same names to OUT: one file if OUT\n"
            "ends with .safetensors, else a new folder, with the config.json and the tokenizer's files\n"
            "that lie beside them. Integers keep their type. If OUT ends with .gguf, IN is a language\n"
            "model (or another .gguf), its vocabulary is included, and --dtype is the type of its\n"
            "matrices; by default float16 and 4-bit weights become float32. A number that is too\n"
            "large for the type is an error.\n",
};

/* "5000000", "500MB", "5GB": decimal units, as the Python libraries count. 0 if it is none. */
static int64_t parse_bytes(const char *text) {
    static const struct {
        const char *name;
        int64_t factor;
    } units[] = {{"", 1}, {"kB", 1000}, {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000}};
    char *end;
    errno = 0;
    const long long n = strtoll(text, &end, 10);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (end != text && strcmp(end, units[i].name) == 0 && errno == 0 && n > 0 && n <= INT64_MAX / units[i].factor)
            return n * units[i].factor;
    return 0;
}

int cmd_convert(int argc, char **argv) {
    int count;
    const int code = cli_parse(&usage, argc, argv, &count);
    if (code >= 0) return code;
    if (count != 2) return cli_wrong(usage.verb, "expected IN and OUT");
    const char *in = model_path(argv[0]), *out = argv[1];
    mhla_convert_desc desc = {.size = sizeof desc, .dtype = dtype};
    const size_t n = strlen(out);
    const int gguf = n > 5 && strcmp(out + n - 5, ".gguf") == 0;
    if (dtype && strcmp(dtype, "float32") != 0 && strcmp(dtype, "bfloat16") != 0 && strcmp(dtype, "float16") != 0 &&
        !(gguf && strcmp(dtype, "q8_0") == 0))
        return cli_wrong(usage.verb, "--dtype is \"%s\": expected float32, bfloat16 or float16%s", dtype,
                         gguf ? ", or q8_0" : " (q8_0 only for OUT.gguf)");
    if (shard_size && (desc.shard_bytes = parse_bytes(shard_size)) == 0)
        return cli_wrong(usage.verb, "--shard-size is \"%s\": expected bytes, such as 5000000 or 500MB", shard_size);
    if (shard_size && (gguf || (n > 12 && strcmp(out + n - 12, ".safetensors") == 0)))
        return cli_wrong(usage.verb, "--shard-size needs a folder, \"%s\" is one file", out);
    const size_t m = strlen(in);
    if (!gguf && m > 5 && strcmp(in + m - 5, ".gguf") == 0) {
        fprintf(stderr, "mhla %s: %s: a .gguf becomes another .gguf only, and \"%s\" is not one\n", usage.verb, in,
                out);
        return CLI_FAILED;
    }
    mhla_convert_result result = {.size = sizeof result};
    const mhla_status status = gguf ? mhla_lm_convert(out, in, &desc, &result) : mhla_convert(out, in, &desc, &result);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (json) {
        json_put_open(NULL, '{');
        json_put_text("out", out);
        json_put_int("tensors", result.tensors);
        json_put_int("numbers", result.numbers);
        json_put_int("bytes", result.bytes);
        json_put_int("files", result.files);
        json_put_close('}');
    } else {
        char numbers[32], bytes[32];
        printf("%s: %lld tensors, %s numbers, %s in %lld file%s\n", out, (long long)result.tensors,
               text_count(numbers, sizeof numbers, result.numbers),
               text_bytes(bytes, sizeof bytes, (double)result.bytes), (long long)result.files,
               result.files == 1 ? "" : "s");
    }
    return CLI_OK;
}
