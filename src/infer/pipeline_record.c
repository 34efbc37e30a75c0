/* How the images of a pipeline were made, as a JSON text: written into every one of them, read back as what it is, a text from anywhere. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "infer/pipeline.h"

enum { IMAGES_MOST = 1000000 };
static const char made_by[] = "mhla sample";

/* ---- Writing ---- */

/* A list of one text per image, which may be the same for all. */
static json_t *texts_of(const char *const *texts, int64_t n) {
    int same = 1;
    for (int64_t i = 1; i < n; i++) same &= strcmp(texts[i], texts[0]) == 0;
    json_t *list = json_array();
    for (int64_t i = 0; i < (same ? 1 : n); i++) mhla_json_add(list, json_string(texts[i]));
    return list;
}

static mhla_status check_texts(const mhla_make_desc *d) {
    for (int64_t i = -2; i < d->images; i++) {
        const char *text = i == -2 ? d->negative : i == -1 ? d->instruction : d->prompts[i];
        const size_t n = strlen(text), broken = mhla_utf8_broken((const unsigned char *)text, n);
        if (broken < n)
            return mhla_fail(MHLA_EDATA, "the prompt %s is not UTF-8 at byte %zu", MHLA_QUOTE(text), broken);
    }
    return MHLA_OK;
}

/* Only the options that the user gave: the folder stands for the others. */
static void put_parts(json_t *tree, const mhla_pipeline *p) {
    if (p->folder) mhla_json_put(tree, "folder", json_string(p->folder));
    for (int part = 0; part < MHLA_PARTS; part++)
        if (p->given[part]) mhla_json_put(tree, mhla_part_names[part], json_string(p->parts[part]));
}

mhla_status mhla_made_write(char **text, const mhla_pipeline *p, const mhla_make_desc *desc, int columns) {
    mhla_make_desc d;
    mhla_cpu_info machine = {.size = sizeof machine};
    *text = NULL;
    MHLA_TRY(mhla_make_settle(p, &d, desc));
    MHLA_TRY(mhla_cpu_query(&machine));
    MHLA_TRY(check_texts(&d));
    const int own = strcmp(d.instruction, p->kind->instruction) == 0;
    const unsigned lost = mhla_json_lost();
    json_t *seeds = json_array();
    for (int64_t i = 0; i < d.images; i++) {
        if (d.seeds[i] > INT64_MAX) {
            json_decref(seeds);
            return mhla_fail(MHLA_EINVAL, "seed %llu: expected less than 2^63", (unsigned long long)d.seeds[i]);
        }
        mhla_json_add(seeds, json_integer((json_int_t)d.seeds[i]));
    }
    json_t *tree =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:s, s:s, s:i, s:f, s:f, s:i, s:i, s:i, s:b, s:I, s:i, s:s}",
                  "made_by", made_by, "version", mhla_version(), "isa", machine.isa, "pipeline", p->kind->name,
                  "weights", p->weights, "prompts", texts_of(d.prompts, d.images), "seeds", seeds, "instruction",
                  own ? "" : d.instruction, "sampler", d.method, "steps", d.steps, "shift", d.shift, "guidance",
                  d.guidance, "height", d.height, "width", d.width, "frames", d.frames, "exact", d.exact, "rows",
                  (json_int_t)d.rows, "columns", columns, "dtype", p->storage ? p->storage : "");
    if (tree && !own) mhla_json_put(tree, "plain", json_true()); /* not even the pipeline's own, where it is empty */
    if (tree && strcmp(d.negative, p->kind->negative) != 0) mhla_json_put(tree, "negative", json_string(d.negative));
    if (tree && d.tiles > 1) mhla_json_put(tree, "memory", json_integer((json_int_t)d.memory));
    if (tree) put_parts(tree, p);
    if (tree && mhla_json_lost() == lost) *text = mhla_json_text(tree, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(tree);
    if (*text) return MHLA_OK;
    return mhla_fail(MHLA_EINVAL, "%s: a path that is not UTF-8 cannot be written down, or no memory", p->kind->name);
}

/* ---- Reading ---- */

struct mhla_made {
    mhla_pipeline_desc pipeline;
    mhla_make_desc desc;
    mhla_made_info info;
    json_t *tree; /* texts are its */
    const char **prompts;
    uint64_t *seeds;
};

static mhla_status not_ours(const char *name) {
    return mhla_fail(MHLA_EDATA, "%s: its text does not say how a pipeline of mhla sample made it", name);
}

/* Texts for n images: of a list of one or n. A stranger's text may reach the terminal: no control characters but line ends. */
static mhla_status read_texts(const char ***to, const json_t *tree, const char *key, int64_t n, const char *name) {
    const json_t *list = json_object_get(tree, key);
    const size_t count = json_array_size(list);
    if (count != 1 && count != (size_t)n)
        return mhla_fail(MHLA_EDATA, "%s: its text has %zu %s for %lld images", name, count, key, (long long)n);
    *to = calloc((size_t)n + 1, sizeof **to);
    if (*to == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its text", name);
    for (int64_t i = 0; i < n; i++) {
        const char *text = (*to)[i] = json_string_value(json_array_get(list, count == 1 ? 0 : (size_t)i));
        if (text == NULL)
            return mhla_fail(MHLA_EDATA, "%s: its text: %s has something that is not a string", name, key);
        for (const char *c = text; *c; c++)
            if (((unsigned char)*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7f)
                return mhla_fail(MHLA_EDATA, "%s: its text: %s have a control character", name, key);
    }
    return MHLA_OK;
}

static mhla_status read_seeds(mhla_made *m, int64_t *n, const json_t *tree, const char *name) {
    const json_t *seeds = json_object_get(tree, "seeds");
    const size_t count = json_array_size(seeds);
    if (count < 1 || count > IMAGES_MOST)
        return mhla_fail(MHLA_EDATA, "%s: its text has %zu seeds: expected 1 to %d", name, count, IMAGES_MOST);
    m->seeds = calloc(count, sizeof *m->seeds);
    if (m->seeds == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its text", name);
    for (size_t i = 0; i < count; i++) {
        const json_t *s = json_array_get(seeds, i);
        if (!json_is_integer(s) || json_integer_value(s) < 0)
            return mhla_fail(MHLA_EDATA, "%s: its text: seed %zu is not a whole number, 0 or more", name, i);
        m->seeds[i] = (uint64_t)json_integer_value(s);
    }
    *n = (int64_t)count;
    return MHLA_OK;
}

/* A text without control characters; NULL where there is none or it is empty. */
static mhla_status read_text(const char **to, const json_t *tree, const char *key, const char *name) {
    MHLA_TRY(mhla_json_get_text(to, tree, key, name));
    for (const char *c = *to; c && *c; c++)
        if (((unsigned char)*c < 0x20 && *c != '\n') || *c == 0x7f)
            return mhla_fail(MHLA_EDATA, "%s: its text: \"%s\" has a control character", name, key);
    if (*to && **to == '\0') *to = NULL;
    return MHLA_OK;
}

static mhla_status read_parts(mhla_made *m, const json_t *tree, const char *name) {
    mhla_pipeline_desc *p = &m->pipeline;
    const char **const parts[MHLA_PARTS] = {&p->text_encoder, &p->transformer, &p->vae, &p->tokenizer, &p->scheduler};
    for (int part = 0; part < MHLA_PARTS; part++) MHLA_TRY(read_text(parts[part], tree, mhla_part_names[part], name));
    MHLA_TRY(read_text(&p->folder, tree, "folder", name));
    return read_text(&p->storage, tree, "dtype", name);
}

static mhla_status read_numbers(mhla_made *m, int64_t *columns, const json_t *tree, const char *name) {
    mhla_make_desc *d = &m->desc;
    int plain = 0;
    int64_t memory = 0;
    const struct {
        const char *key;
        int64_t least, most;
        int *to;
    } numbers[] = {{"steps", 1, 1000, &d->steps},
                   {"height", 1, 1 << 16, &d->height},
                   {"width", 1, 1 << 16, &d->width},
                   {"frames", 0, 1 << 16, &d->frames}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int64_t x = INT64_MIN;
        MHLA_TRY(mhla_json_get_int(&x, tree, numbers[i].key, numbers[i].least, numbers[i].most, name));
        if (x == INT64_MIN) return mhla_fail(MHLA_EDATA, "%s: its text lacks \"%s\"", name, numbers[i].key);
        *numbers[i].to = (int)x;
    }
    *columns = 1;
    MHLA_TRY(mhla_json_get_int(columns, tree, "columns", 1, IMAGES_MOST, name));
    MHLA_TRY(mhla_json_get_int(&d->rows, tree, "rows", 0, 1 << 20, name));
    MHLA_TRY(mhla_json_get_int(&memory, tree, "memory", 0, INT64_MAX, name));
    d->memory = (size_t)memory;
    MHLA_TRY(mhla_json_get_real(&d->shift, tree, "shift", name));
    MHLA_TRY(mhla_json_get_real(&d->guidance, tree, "guidance", name));
    MHLA_TRY(mhla_json_get_bool(&d->exact, tree, "exact", name));
    MHLA_TRY(mhla_json_get_bool(&plain, tree, "plain", name));
    MHLA_TRY(read_text(&d->method, tree, "sampler", name));
    MHLA_TRY(read_text(&d->instruction, tree, "instruction", name));
    MHLA_TRY(read_text(&d->negative, tree, "negative", name));
    if (d->negative == NULL && json_object_get(tree, "negative")) d->negative = "";
    if (plain && d->instruction == NULL) d->instruction = "";
    return MHLA_OK;
}

static mhla_status read_made(mhla_made *m, const char *name) {
    mhla_made_info *made = &m->info;
    const struct {
        const char *key;
        char *to;
        size_t room;
    } texts[] = {{"weights", made->weights, sizeof made->weights},
                 {"isa", made->isa, sizeof made->isa},
                 {"version", made->version, sizeof made->version}};
    int64_t n = 0, columns = 1, frame = 0;
    MHLA_TRY(read_seeds(m, &n, m->tree, name));
    MHLA_TRY(read_texts(&m->prompts, m->tree, "prompts", n, name));
    MHLA_TRY(read_parts(m, m->tree, name));
    MHLA_TRY(read_numbers(m, &columns, m->tree, name));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *text = NULL;
        MHLA_TRY(read_text(&text, m->tree, texts[i].key, name));
        if (text == NULL || strlen(text) >= texts[i].room)
            return mhla_fail(MHLA_EDATA, "%s: its text: \"%s\" is missing or too long", name, texts[i].key);
        memcpy(texts[i].to, text, strlen(text) + 1);
    }
    m->desc.images = n;
    m->desc.prompts = m->prompts;
    m->desc.seeds = m->seeds;
    made->columns = (int)columns;
    MHLA_TRY(mhla_json_get_int(&frame, m->tree, "frame", 0, m->desc.frames, name));
    made->frame = (int)frame;
    return MHLA_OK;
}

void mhla_made_free(mhla_made *m) {
    if (m == NULL) return;
    json_decref(m->tree);
    free(m->prompts);
    free(m->seeds);
    free(m);
}

mhla_status mhla_made_read(mhla_made **made, const char *text, const char *name) {
    *made = NULL;
    if (text == NULL) return not_ours(name);
    mhla_made *m = calloc(1, sizeof *m);
    if (m == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its text", name);
    m->pipeline.size = sizeof m->pipeline;
    m->desc.size = sizeof m->desc;
    m->info.size = sizeof m->info;
    mhla_status status = mhla_json_parse(&m->tree, text, strlen(text), name);
    const char *by = json_string_value(json_object_get(m->tree, "made_by"));
    if (status == MHLA_EDATA ||
        (status == MHLA_OK && (by == NULL || strcmp(by, made_by) != 0 || !json_object_get(m->tree, "pipeline"))))
        status = not_ours(name);
    if (status == MHLA_OK) status = read_made(m, name);
    if (status == MHLA_OK)
        *made = m;
    else
        mhla_made_free(m);
    return status;
}

mhla_status mhla_made_pipeline(const mhla_made *m, mhla_pipeline_desc *desc) {
    return mhla_struct_out(desc, &m->pipeline, sizeof m->pipeline, "mhla_pipeline_desc");
}
mhla_status mhla_made_desc(const mhla_made *m, mhla_make_desc *desc) {
    return mhla_struct_out(desc, &m->desc, sizeof m->desc, "mhla_make_desc");
}
mhla_status mhla_made_query(const mhla_made *m, mhla_made_info *info) {
    return mhla_struct_out(info, &m->info, sizeof m->info, "mhla_made_info");
}
