/* BPE in the files of its authors: GPT-2's vocab.json and merges.txt, CLIP's of the same names, and CLIP's own list of merges,
 * of which its vocabulary follows. All of it is put together as the tokenizer.json that it would be. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"
#include "text/tokenizer.h"

/* What stands around the model, as in tokenizer.json. */
static const char gpt2_around[] =
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"merges\":[]}}";
static const char qwen2_around[] =
    "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
    "\"Split\","
    "\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}|"
    " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"merges\":[]}}";
static const char clip_around[] =
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Replace\",\"pattern\":"
    "{\"Regex\":\"\\\\s+\"},\"content\":\" \"},{\"type\":\"Lowercase\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\","
    "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|\\\\p{L}+|\\\\p{N}|"
    "[^\\\\s\\\\p{L}\\\\p{N}]+\"},\"behavior\":\"Removed\",\"invert\":true},{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[],"
    "\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"merges\":[]}}";

enum { CLIP_MERGES = 48894, CLIP_LONGEST = 77 };
static const char word_end[] = "</w>", clip_start[] = "<|startoftext|>", clip_stop[] = "<|endoftext|>";

static mhla_status no_memory(const char *name) { return mhla_fail(MHLA_ENOMEM, "%s: no memory for its merges", name); }

static mhla_status set_id(json_t *vocab, const char *piece, json_int_t id, const char *name) {
    if (json_object_get(vocab, piece))
        return mhla_fail(MHLA_EDATA, "%s: the piece %s occurs twice", name, MHLA_QUOTE(piece));
    return json_object_set_new(vocab, piece, json_integer(id)) == 0 ? MHLA_OK : no_memory(name);
}

/* The pieces of CLIP before its merges: each byte's character, in the order of the characters that stand for themselves first;
 * then the same as ends of words. */
static mhla_status clip_bytes(json_t *vocab, const char *name) {
    json_int_t id = 0;
    for (int end = 0; end < 2; end++)
        for (int other = 0; other < 2; other++)
            for (int byte = 0; byte < 256; byte++) {
                const uint32_t code = mhla_byte_level_char((unsigned char)byte);
                char piece[16] = "";
                if ((code >= 256) != other) continue;
                mhla_utf8_put((unsigned char *)piece, code);
                if (end) strcat(piece, word_end);
                MHLA_TRY(set_id(vocab, piece, id++, name));
            }
    return MHLA_OK;
}

/* A line "a b" of a list of merges, to the list; and the piece that it makes to `vocab`, if that is not NULL. */
static mhla_status add_merge(json_t *merges, json_t *vocab, const char *line, size_t bytes, size_t number,
                             const char *name) {
    const char *space = memchr(line, ' ', bytes);
    const size_t left = space ? (size_t)(space - line) : 0;
    if (left == 0 || left + 1 == bytes || memchr(space + 1, ' ', bytes - left - 1))
        return mhla_fail(MHLA_EDATA, "%s:%zu: %s: expected two pieces", name, number,
                         mhla_quote_bytes(line, bytes).text);
    if (json_array_append_new(merges, json_stringn(line, bytes)) != 0)
        return mhla_fail(MHLA_EDATA, "%s:%zu: not UTF-8, or no memory", name, number);
    if (vocab == NULL) return MHLA_OK;
    mhla_chars piece = {0};
    mhla_status status = mhla_chars_append(&piece, line, left);
    if (status == MHLA_OK) status = mhla_chars_append(&piece, space + 1, bytes - left - 1);
    if (status == MHLA_OK) status = mhla_chars_append(&piece, "", 1);
    if (status == MHLA_OK) status = set_id(vocab, piece.data, (json_int_t)json_object_size(vocab), name);
    mhla_chars_free(&piece);
    return status;
}

/* All lines but a first one that tells the version. */
static mhla_status read_merges(json_t *merges, json_t *vocab, const char *text, size_t size, const char *name) {
    size_t number = 0;
    for (size_t at = 0, next; at < size; at = next) {
        const char *line = text + at, *end = memchr(line, '\n', size - at);
        size_t bytes = end ? (size_t)(end - line) : size - at;
        next = at + bytes + (end != NULL);
        number++;
        if (bytes && line[bytes - 1] == '\r') bytes--;
        if (bytes == 0 || (number == 1 && memmem(line, bytes, "#version", 8))) continue;
        if (memchr(line, '\0', bytes)) return mhla_fail(MHLA_EDATA, "%s:%zu: a byte of 0", name, number);
        if (vocab && json_array_size(merges) == CLIP_MERGES) return MHLA_OK; /* CLIP takes no more of its list */
        if (json_array_size(merges) == MHLA_VOCABULARY_IDS)
            return mhla_fail(MHLA_EDATA, "%s: more than %d merges", name, MHLA_VOCABULARY_IDS);
        MHLA_TRY(add_merge(merges, vocab, line, bytes, number, name));
    }
    return json_array_size(merges) ? MHLA_OK : mhla_fail(MHLA_EDATA, "%s: no merges", name);
}

/* "added_tokens_decoder": {"151643": {"content": .., ..}, ..}, which is where transformers keeps tokens beyond vocab.json. */
static mhla_status add_decoder(json_t *tree, const json_t *config, const char *name) {
    const json_t *list = json_object_get(config, "added_tokens_decoder");
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)(uintptr_t)list, key, item) {
        char *end;
        const long id = strtol(key, &end, 10);
        if (!json_is_object(item) || *key < '0' || *key > '9' || *end) continue;
        json_t *row = json_copy(item);
        if (row == NULL || json_object_set_new(row, "id", json_integer(id)) != 0 ||
            json_array_append(json_object_get(tree, "added_tokens"), row) != 0) {
            json_decref(row);
            return no_memory(name);
        }
        json_decref(row);
    }
    return MHLA_OK;
}

static mhla_status add_special(json_t *tree, const char *piece, const char *name) {
    json_t *vocab = json_object_get(json_object_get(tree, "model"), "vocab"), *id = json_object_get(vocab, piece);
    if (!json_is_integer(id)) return MHLA_OK;
    json_t *row = json_pack("{s:O, s:s, s:b}", "id", id, "content", piece, "special", 1);
    return json_array_append_new(json_object_get(tree, "added_tokens"), row) == 0 ? MHLA_OK : no_memory(name);
}

/* Does a text of CLIP end words with "</w>", or of GPT-2 not? */
static int is_clip(const json_t *vocab) {
    const char *piece;
    json_t *id;
    json_object_foreach((json_t *)(uintptr_t)vocab, piece, id) {
        const size_t n = strlen(piece);
        if (n > 4 && strcmp(piece + n - 4, word_end) == 0) return 1;
    }
    return 0;
}

/* `tree` becomes the tokenizer.json; `vocab` is borrowed. */
static mhla_status put_together(json_t **tree, json_t *vocab, int derived, const char *merges, size_t size,
                                const json_t *config, const char *name) {
    static const char *const specials[] = {clip_start, clip_stop, "<s>", "<pad>", "</s>", "<unk>", "<mask>"};
    const char *kind = json_string_value(json_object_get(config, "tokenizer_class"));
    const int clip = derived || is_clip(vocab), qwen2 = kind && strncmp(kind, "Qwen2", 5) == 0;
    const char *around = clip ? clip_around : qwen2 ? qwen2_around : gpt2_around;
    MHLA_TRY(mhla_json_parse(tree, around, strlen(around), name));
    json_t *model = json_object_get(*tree, "model");
    if (json_object_set(model, "vocab", vocab) != 0) return no_memory(name);
    MHLA_TRY(read_merges(json_object_get(model, "merges"), derived ? vocab : NULL, merges, size, name));
    if (derived) {
        MHLA_TRY(set_id(vocab, clip_start, (json_int_t)json_object_size(vocab), name));
        MHLA_TRY(set_id(vocab, clip_stop, (json_int_t)json_object_size(vocab), name));
    }
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) MHLA_TRY(add_special(*tree, specials[i], name));
    MHLA_TRY(add_decoder(*tree, config, name));
    if (json_is_true(json_object_get(config, "add_prefix_space")) && around == gpt2_around &&
        json_object_set(json_object_get(*tree, "pre_tokenizer"), "add_prefix_space", json_true()) != 0)
        return no_memory(name);
    const int roberta = kind && strncmp(kind, "Roberta", 7) == 0;
    const char *first = clip ? clip_start : "<s>", *last = clip ? clip_stop : "</s>";
    const json_t *ids[2] = {json_object_get(vocab, first), json_object_get(vocab, last)};
    if ((clip || roberta) && json_is_integer(ids[0]) && json_is_integer(ids[1])) {
        json_t *post = json_pack("{s:s, s:[s,O], s:[s,O]}", "type", "RobertaProcessing", "cls", first, ids[0], "sep",
                                 last, ids[1]);
        if (json_object_set_new(*tree, "post_processor", post) != 0) return no_memory(name);
    }
    return MHLA_OK;
}

mhla_status mhla_tokenizer_parse_merges(mhla_tokenizer **tokenizer, const char *vocab, size_t vocab_size,
                                        const char *merges, size_t merges_size, const json_t *config,
                                        const char *name) {
    *tokenizer = NULL;
    json_t *pieces = NULL, *tree = NULL;
    mhla_status status = MHLA_OK;
    if (vocab) {
        status = mhla_json_parse(&pieces, vocab, vocab_size, name);
        if (status == MHLA_OK && !json_is_object(pieces))
            status = mhla_fail(MHLA_EDATA, "%s: expected an object of pieces and their ids", name);
    } else {
        pieces = json_object();
        status = pieces ? clip_bytes(pieces, name) : no_memory(name);
    }
    if (status == MHLA_OK) status = put_together(&tree, pieces, vocab == NULL, merges, merges_size, config, name);
    if (status == MHLA_OK) status = mhla_tokenizer_parse_tree(tokenizer, tree, name);
    if (status == MHLA_OK && (*tokenizer)->bpe.suffix_bytes) {
        (*tokenizer)->kind = "bpe, byte level, ends of words";
        (*tokenizer)->longest = CLIP_LONGEST;
        for (size_t i = 0; i < (*tokenizer)->normalizer_count && vocab == NULL; i++)
            (*tokenizer)->normalizers[i].final_sigma = 1; /* the list is used from Python */
    }
    json_decref(tree);
    json_decref(pieces);
    return status;
}
