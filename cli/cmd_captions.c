/* mhla captions: the captions of a dataset through a frozen text encoder, once; a text-to-image model is then trained on the rows. */
#include <mhla/diffusion.h>
#include <stdio.h>

#include "cli.h"

static const char *encoder, *out, *instruction, *dtype;
static int64_t threads, longest;
static int json, quiet;

static const cli_option options[] = {
    {"encoder", CLI_TEXT, &encoder, "MODEL", "a text encoder or language model: a folder or a file; required"},
    {"out,o", CLI_TEXT, &out, "DIR", "the folder to write; required"},
    {"instruction", CLI_TEXT, &instruction, "TEXT",
     "put in front of every caption; of its rows only the first and the\n                         last are kept"},
    {"longest", CLI_INT, &longest, "N",
     "at most N rows per caption (a row is a token's embedding); default: the encoder's limit"},
    {"dtype", CLI_TEXT, &dtype, "TYPE", "storage of the encoder's weights: float32, bfloat16, q8_0"},
    {"threads", CLI_INT, &threads, "N", "default: OpenMP's; does not change the result"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {"quiet", CLI_FLAG, &quiet, NULL, "no progress"},
    {0},
};
static const cli_usage usage = {
    .verb = "captions",
    .arguments = "DATA",
    .options = options,
    .text =
        "Encodes the caption of every image of a dataset, and the empty caption. The captions of \"emoji\" are their\n"
        "names. A folder of images has them in metadata.jsonl, a line {\"file_name\": \"cat/1.png\", \"text\": \"a "
        "cat\"} for\n"
        "each image, in the layout of Hugging Face's imagefolder: in the folder, or in train and test. DATA may also "
        "be a\n"
        "text file, with a text in each line.\n"
        "\n"
        "mhla train takes DIR as --captions DIR. If the command is stopped or killed, run it again: it makes\nwhat is "
        "missing and ends with the same bytes. DIR records the captions and the SHA-256 of the encoder:\nanother "
        "encoder or a changed caption is an error.\n",
};

static void print(const mhla_captions_made *m) {
    if (json) {
        json_put_open(NULL, '{');
        json_put_text("out", out);
        json_put_int("train", m->train);
        json_put_int("test", m->test);
        json_put_int("kept", m->kept);
        json_put_int("cut", m->cut);
        json_put_int("longest", m->longest);
        json_put_int("width", m->width);
        json_put_close('}');
        return;
    }
    printf("%s: %d numbers per token, %lld captions to train and %lld to test, at most %lld tokens each", out, m->width,
           (long long)m->train, (long long)m->test, (long long)m->longest);
    if (m->kept) printf("; %lld were there", (long long)m->kept);
    if (m->cut) printf("; %lld were cut at their end", (long long)m->cut);
    printf("\n");
}

int cmd_captions(int argc, char **argv) {
    int given = 0;
    const int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (given != 1) return cli_wrong(usage.verb, "one DATA is expected, %d given", given);
    if (encoder == NULL) return cli_wrong(usage.verb, "--encoder is missing");
    if (out == NULL || *out == '\0') return cli_wrong(usage.verb, "--out is missing");
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    mhla_model *model = NULL;
    mhla_context *context = NULL;
    mhla_captions_made made = {.size = sizeof made};
    mhla_status status = mhla_model_open_as(&model, model_path(encoder),
                                            &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = dtype});
    if (status == MHLA_OK && threads)
        status = mhla_context_create(&context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
    if (status == MHLA_OK && context) mhla_model_set_context(model, context);
    count_line line = count_begin("captions");
    if (status == MHLA_OK)
        status = mhla_captions_make(model,
                                    &(mhla_captions_desc){.size = sizeof(mhla_captions_desc),
                                                          .source = argv[0],
                                                          .out = out,
                                                          .instruction = instruction,
                                                          .longest = longest,
                                                          .progress = quiet ? NULL : count_show,
                                                          .user = &line},
                                    &made);
    mhla_model_free(model);
    mhla_context_free(context);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    print(&made);
    return CLI_OK;
}
