/* mhla tokenize: text to ids, ids to text, documents to a shard; and mhla tokenize train, which makes a tokenizer. */
#include <errno.h>
#include <mhla/lm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* ---- Ids and text ---- */

static const char *text, *out;
static int decode, pieces, special, plain, skip_special, timed, json;

static const cli_option options[] = {
    {"text", CLI_TEXT, &text, "TEXT", "use this text instead of files"},
    {"decode", CLI_FLAG, &decode, NULL, "decode: files hold ids, the text is printed"},
    {"special", CLI_FLAG, &special, NULL, "add the special tokens around a text (<s>)"},
    {"plain", CLI_FLAG, &plain, NULL, "treat special tokens in the text as text"},
    {"skip-special", CLI_FLAG, &skip_special, NULL, "with --decode: leave special tokens out"},
    {"pieces", CLI_FLAG, &pieces, NULL, "also print the pieces as the tokenizer spells them"},
    {"time", CLI_FLAG, &timed, NULL, "print the speed of one thread instead of the ids"},
    {"out", CLI_TEXT, &out, "SHARD", "write the documents of files and folders as a shard for mhla train"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {0},
};
static const cli_usage usage = {
    .verb = "tokenize",
    .arguments = "TOKENIZER [FILE...]",
    .options = options,
    .text = "Prints the ids of each file's text (standard input without any), a line for each.\n"
            "TOKENIZER is a tokenizer.json, a tokenizer.model (SentencePiece or tiktoken), a .gguf, a\n"
            "vocab.json beside its merges.txt, a .tiktoken file, CLIP's bpe_simple_vocab_16e6.txt.gz, or a\n"
            "folder with one of them.\n\n"
            "  mhla tokenize model/ --text 'Hello world'\n"
            "  mhla tokenize model/ book.txt | mhla tokenize model/ --decode\n"
            "  mhla tokenize model/ --out train.shard texts/\n"
            "  mhla tokenize train tokenizer.json texts/     (mhla tokenize train --help)\n",
};

static void print_ids(const mhla_tokenizer *t, const mhla_ids *ids, const char *name, size_t bytes) {
    if (!json) {
        for (int64_t i = 0; i < ids->count; i++) printf("%s%d", i ? " " : "", ids->data[i]);
        printf("\n");
        for (int64_t i = 0; pieces && i < ids->count; i++) {
            const char *piece = mhla_tokenizer_piece(t, ids->data[i]);
            printf("%7d  %s\n", ids->data[i], piece ? piece : "");
        }
        return;
    }
    json_put_open(NULL, '{');
    if (name) json_put_text("file", name);
    json_put_int("bytes", (int64_t)bytes);
    json_put_int("count", ids->count);
    json_put_open("ids", '[');
    for (int64_t i = 0; i < ids->count; i++) json_put_int(NULL, ids->data[i]);
    json_put_close(']');
    if (pieces) {
        json_put_open("pieces", '[');
        for (int64_t i = 0; i < ids->count; i++) {
            const char *piece = mhla_tokenizer_piece(t, ids->data[i]);
            json_put_text(NULL, piece ? piece : "");
        }
        json_put_close(']');
    }
    json_put_close('}');
}

/* Encodes for about a second; the best time counts. */
static mhla_status print_speed(const mhla_tokenizer *t, const char *name, const char *bytes, size_t size,
                               unsigned flags) {
    double best = 0.0;
    mhla_status status = MHLA_OK;
    mhla_ids ids = {0};
    for (double begin = now_seconds(), at = begin; at < begin + 1.0 && status == MHLA_OK;) {
        ids.count = 0;
        status = mhla_tokenizer_encode(t, &ids, bytes, size, flags);
        const double end = now_seconds();
        if (best == 0.0 || end - at < best) best = end - at;
        at = end;
    }
    if (status == MHLA_OK && json) {
        json_put_open(NULL, '{');
        if (name) json_put_text("file", name);
        json_put_int("bytes", (int64_t)size);
        json_put_int("count", ids.count);
        json_put_real("seconds", best);
        json_put_close('}');
    } else if (status == MHLA_OK) {
        char length[32], count[32];
        printf("%s: %s bytes, %s ids, %.1f MB/s\n", name ? name : "text",
               text_count(length, sizeof length, (int64_t)size), text_count(count, sizeof count, ids.count),
               best > 0.0 ? 1e-6 * (double)size / best : 0.0);
    }
    mhla_ids_free(&ids);
    return status;
}

/* Whole numbers between spaces, commas and brackets. 0 with a message where there is something else. */
static int parse_ids(int32_t **ids, int64_t *count, const char *bytes, size_t size, const char *name) {
    *ids = malloc((size / 2 + 1) * sizeof **ids);
    *count = 0;
    for (size_t i = 0; *ids && i < size;) {
        if (bytes[i] && strchr(" \t\r\n,[]", bytes[i])) {
            i++;
            continue;
        }
        const size_t start = i;
        int64_t value = 0;
        while (i < size && bytes[i] >= '0' && bytes[i] <= '9' && value <= INT32_MAX)
            value = 10 * value + (bytes[i++] - '0');
        if (i == start || value > INT32_MAX) {
            fprintf(stderr, "mhla tokenize: %s: byte %zu begins no id\n", name, start);
            return 0;
        }
        (*ids)[(*count)++] = (int32_t)value;
    }
    return *ids != NULL;
}

static int one_text(const mhla_tokenizer *t, const char *name, const char *bytes, size_t size) {
    mhla_status status;
    if (decode) {
        int32_t *ids;
        int64_t count;
        mhla_chars decoded = {0};
        if (!parse_ids(&ids, &count, bytes, size, name ? name : "standard input")) {
            free(ids);
            return CLI_FAILED;
        }
        status = mhla_tokenizer_decode(t, &decoded, ids, count, skip_special ? MHLA_DECODE_SKIP_SPECIAL : 0);
        if (status == MHLA_OK) text_write(decoded.data, decoded.count);
        free(ids);
        mhla_chars_free(&decoded);
    } else {
        mhla_ids ids = {0};
        const unsigned flags = (special ? MHLA_ENCODE_SPECIAL : 0u) | (plain ? MHLA_ENCODE_PLAIN : 0u);
        status = timed ? print_speed(t, name, bytes, size, flags) : mhla_tokenizer_encode(t, &ids, bytes, size, flags);
        if (status == MHLA_OK && !timed) print_ids(t, &ids, name, size);
        mhla_ids_free(&ids);
    }
    if (status == MHLA_OK) return CLI_OK;
    fprintf(stderr, "mhla tokenize: %s%s%s\n", name ? name : "", name ? ": " : "", mhla_message());
    return CLI_FAILED;
}

static void print_progress(void *user, int64_t done, int64_t all) {
    static double shown;
    (void)user;
    if (all < 1 || (now_seconds() - shown < 0.2 && done < all)) return;
    shown = now_seconds();
    fprintf(stderr, done == all ? "\r\033[K" : "\r%lld %%", (long long)(100.0 * (double)done / (double)all));
}

static int make_shard(const char *tokenizer, const char *const *files, int count) {
    mhla_shard_info info = {.size = sizeof info};
    const mhla_status status =
        mhla_shard_make(out, tokenizer, files, count, NULL, &info, isatty(STDERR_FILENO) ? print_progress : NULL, NULL);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (json) {
        json_put_open(NULL, '{');
        json_put_text("out", out);
        json_put_int("documents", info.documents);
        json_put_int("tokens", info.tokens);
        json_put_int("bytes", info.bytes);
        json_put_int("vocabulary", info.vocabulary);
        json_put_real("seconds", info.seconds);
        json_put_close('}');
    } else {
        char documents[32], tokens[32], bytes[32];
        printf("%s: %s documents, %s tokens of %s text, %.2f bytes each\n", out,
               text_count(documents, sizeof documents, info.documents), text_count(tokens, sizeof tokens, info.tokens),
               text_bytes(bytes, sizeof bytes, (double)info.bytes),
               info.tokens ? (double)info.bytes / (double)info.tokens : 0.0);
    }
    return CLI_OK;
}

/* ---- Training ---- */

static const char *special_tokens;
static int64_t vocabulary, min_count;

static const cli_option train_options[] = {
    {"vocabulary", CLI_INT, &vocabulary, "N", "pieces in all; default: 8192"},
    {"min-count", CLI_INT, &min_count, "N", "pairs that are rarer are not merged; default: 2"},
    {"special-tokens", CLI_TEXT, &special_tokens, "LIST", "the first ids, with commas between; default: <|endoftext|>"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {0},
};
static const cli_usage train_usage = {
    .verb = "tokenize train",
    .arguments = "OUT FILE...",
    .options = train_options,
    .text = "Trains a byte-level BPE on text files, .jsonl files (their key \"text\") and folders of them, and\n"
            "writes it as a tokenizer.json, which the Python library loads as well.\n",
};

static int train(int argc, char **argv) {
    int count;
    const int code = cli_parse(&train_usage, argc, argv, &count);
    if (code >= 0) return code;
    if (count < 2) return cli_wrong(train_usage.verb, "expected OUT and at least one FILE");
    if (vocabulary > INT32_MAX || min_count > INT32_MAX)
        return cli_wrong(train_usage.verb, "--vocabulary or --min-count is too large");
    enum { SPECIALS = 256 };
    const char *list[SPECIALS];
    mhla_tokenizer_training how = {.size = sizeof how, .vocabulary = (int)vocabulary, .min_count = (int)min_count};
    char *copy = special_tokens ? strdup(special_tokens) : NULL;
    for (char *rest = copy, *one; copy && (one = strsep(&rest, ",")) != NULL && how.specials < SPECIALS;)
        list[how.specials++] = one;
    if (copy) how.special = list;
    const double begun = now_seconds();
    const mhla_status status = mhla_tokenizer_train(argv[0], (const char *const *)argv + 1, count - 1, &how,
                                                    isatty(STDERR_FILENO) ? print_progress : NULL, NULL);
    free(copy);
    if (status != MHLA_OK) return cli_failed(train_usage.verb, status);
    const double seconds = now_seconds() - begun;
    mhla_tokenizer *t;
    mhla_tokenizer_info info = {.size = sizeof info};
    if (mhla_tokenizer_open(&t, argv[0]) != MHLA_OK || mhla_tokenizer_query(t, &info) != MHLA_OK)
        return cli_failed(train_usage.verb, MHLA_EDATA);
    if (json) {
        json_put_open(NULL, '{');
        json_put_text("out", argv[0]);
        json_put_int("vocabulary", info.vocabulary);
        json_put_real("seconds", seconds);
        json_put_close('}');
    } else {
        char time[32];
        printf("%s: %d pieces in %s\n", argv[0], info.vocabulary, text_time(time, sizeof time, seconds));
    }
    mhla_tokenizer_free(t);
    return CLI_OK;
}

int cmd_tokenize(int argc, char **argv) {
    if (argc > 0 && strcmp(argv[0], "train") == 0) return train(argc - 1, argv + 1);
    int count;
    int code = cli_parse(&usage, argc, argv, &count);
    if (code >= 0) return code;
    if (count < 1) return cli_wrong(usage.verb, "expected TOKENIZER");
    if (text && count > 1) return cli_wrong(usage.verb, "--text and files exclude each other");
    if (timed && (decode || pieces || out))
        return cli_wrong(usage.verb, "--time goes with --text, --special, --plain and --json only");
    if (decode && (json || out || special || plain || pieces))
        return cli_wrong(usage.verb, "--decode goes with --text and --skip-special only");
    if (skip_special && !decode) return cli_wrong(usage.verb, "--skip-special needs --decode");
    if (out) {
        if (text || count < 2) return cli_wrong(usage.verb, "--out needs files or folders");
        return make_shard(argv[0], (const char *const *)argv + 1, count - 1);
    }
    mhla_tokenizer *t;
    const mhla_status status = mhla_tokenizer_open(&t, argv[0]);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (json) json_put_open(NULL, '[');
    code = CLI_OK;
    for (int i = 1; (i < count || i == 1) && code == CLI_OK; i++) {
        const char *name = i < count ? argv[i] : NULL;
        if (text) {
            code = one_text(t, NULL, text, strlen(text));
            continue;
        }
        size_t size;
        char *bytes = cli_read_all(usage.verb, name ? name : "-", &size);
        code = bytes ? one_text(t, name, bytes, size) : CLI_FAILED;
        free(bytes);
    }
    if (json) json_put_close(']');
    mhla_tokenizer_free(t);
    return code;
}
