/* What files say about a language model besides its weights, from Hugging Face's folders to GGUF and back: the tokens that
 * end a text, and the scaled rotary embedding. */
#include "file/gguf.h"
#include "file/json.h"
#include "files.h"
#include "mixer_settings.h"
#include "models/language/lm.h"
#include "models/language/mixers/angles.h"
#include "models/model.h"
#include "nn/nn.h"

static void put_text(const char *path, const char *text) { write_file(path, text, strlen(text)); }

/* A small Llama in folder/model, key by key as `changes` (an object, or NULL) says. */
static void write_model(const char *attention, const char *changes) {
    char setting[64];
    snprintf(setting, sizeof setting, "attention=%s", attention);
    const char *settings[] = {"vocab_size=24", "hidden_size=32",      "intermediate_size=64", "parameter_names=llama",
                              setting,         "num_hidden_layers=1", "num_heads=2"};
    mhla_model *m;
    json_t *tree, *more;
    ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, 7, 3));
    ASSERT_OK(mhla_model_save(m, in_folder("model")));
    mhla_model_free(m);
    unlink(in_folder("model/generation_config.json"));
    if (changes == NULL) return;
    ASSERT_OK(mhla_json_load(&tree, in_folder("model/config.json")));
    ASSERT_OK(mhla_json_parse(&more, changes, strlen(changes), "changes"));
    json_object_update(tree, more);
    ASSERT_OK(mhla_json_save(tree, in_folder("model/config.json")));
    json_decref(tree);
    json_decref(more);
}

/* ---- The end of a text ---- */

static void expect_ends(const char *path, int32_t eos, const int32_t *ends, int count) {
    mhla_model *m;
    mhla_lm_info info = {.size = sizeof info};
    ASSERT_OK(mhla_model_open(&m, path));
    ASSERT_OK(mhla_lm_query(m, &info));
    assert_int_equal(info.eos, eos);
    assert_int_equal(info.end_count, count);
    for (int i = 0; i < count; i++) assert_int_equal(info.ends[i], ends[i]);
    mhla_model_free(m);
}

/* The same of a folder and of the GGUF that it becomes, and of that GGUF's own copy. */
static void expect_everywhere(int32_t eos, const int32_t *ends, int count) {
    expect_ends(in_folder("model"), eos, ends, count);
    ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("model"), NULL, NULL));
    expect_ends(in_folder("a.gguf"), eos, ends, count);
    ASSERT_OK(mhla_lm_convert(in_folder("b.gguf"), in_folder("a.gguf"), NULL, NULL));
    expect_ends(in_folder("b.gguf"), eos, ends, count);
}

static void ends(void **state) {
    (void)state;
    static const char *const attentions[] = {"softmax", "mhla"};
    for (int i = 0; i < 2; i++) {
        write_model(attentions[i], "{\"eos_token_id\": 4}");
        expect_everywhere(4, (const int32_t[]){4}, 1);
        write_model(attentions[i], "{\"eos_token_id\": null}");
        expect_ends(in_folder("model"), i ? 2 : -1, (const int32_t[]){2}, i); /* fla's default, Llama's none */
        write_model(attentions[i], "{\"eos_token_id\": [3, 5.0, 8]}");
        expect_everywhere(3, (const int32_t[]){3, 5, 8}, 3);
        /* generation_config.json counts more, and may say nothing */
        put_text(in_folder("model/generation_config.json"), "{\"temperature\": 0.6, \"eos_token_id\": [7, 5, 9, 11]}");
        expect_everywhere(3, (const int32_t[]){7, 5, 9, 11}, 4);
        put_text(in_folder("model/generation_config.json"), "{\"eos_token_id\": 6}");
        expect_everywhere(3, (const int32_t[]){6}, 1);
        put_text(in_folder("model/generation_config.json"), "{\"eos_token_id\": null}");
        expect_everywhere(3, (const int32_t[]){3, 5, 8}, 3);
    }
    write_model("softmax", "{\"eos_token_id\": null}");
    put_text(in_folder("model/generation_config.json"), "{\"eos_token_id\": [9, 2]}");
    expect_everywhere(9, (const int32_t[]){9, 2}, 2);
    /* a folder takes the file along */
    ASSERT_OK(mhla_convert(in_folder("copy"), in_folder("model"), NULL, NULL));
    expect_ends(in_folder("copy"), 9, (const int32_t[]){9, 2}, 2);
}

/* Softmax models of ours, under the names of flash-linear-attention, too, are Llamas to whoever reads their GGUF: every tensor
 * has llama.cpp's name and comes back with the same values. */
static void gguf_names(void **state) {
    (void)state;
    static const char *const settings[] = {"vocab_size=24", "hidden_size=32", "attention=softmax", "num_heads=2"};
    mhla_model *m, *back;
    size_t size;
    ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, 4, 3));
    ASSERT_OK(mhla_model_save(m, in_folder("plain")));
    ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("plain"), NULL, NULL));
    char *bytes = read_file(in_folder("a.gguf"), &size);
    assert_null(memmem(bytes, size, "model.", 6));
    assert_non_null(memmem(bytes, size, "llama.block_count", 17));
    free(bytes);
    ASSERT_OK(mhla_model_open(&back, in_folder("a.gguf")));
    const mhla_params *a = m->params, *b = back->params;
    assert_int_equal(mhla_params_count(a), mhla_params_count(b));
    for (int i = 0; i < mhla_params_count(a); i++) { /* the same order of tensors in both ways of naming */
        const mhla_param *p = mhla_params_at(a, i), *q = mhla_params_at(b, i);
        assert_int_equal(p->count, q->count);
        assert_memory_equal(p->data, q->data, sizeof(float) * (size_t)p->count);
    }
    mhla_model_free(m);
    mhla_model_free(back);
}

/* Gemma as llama.cpp has it: its keys, its norms with the 1 added; from a folder and back, with the same numbers. What it has no key for
 * goes under our own name. */
static void gguf_gemma(void **state) {
    (void)state;
    static const char *const settings[][16] = {
        {"gemma2.block_count", "final_logit_softcapping=3", "attn_logit_softcapping=2", "attn_layers=0,2",
         "attn_window_size=4", "attn_attn_logit_softcapping=2"},
        {"gemma3.block_count", "qk_norm=true", "norm_eps=1e-5", "rope_theta=1e6", "attn_layers=0,1",
         "attn_window_size=5", "attn_qk_norm=true"},
        {"gemma3.rope.freq_base_swa", "qk_norm=true", "norm_eps=1e-5", "attn_layers=0,2", "attn_window_size=3",
         "attn_qk_norm=true", "attn_rope_theta=100"},
        {"mhla.config", "query_pre_attn_scalar=7"},
        {"mhla.config", "attn_logit_softcapping=2"}};
    enum { T = 9 };
    static const int32_t ids[T] = {1, 5, 3, 8, 2, 23, 0, 4, 11};
    for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
        const char *all[24] = {"vocab_size=24",       "hidden_size=32",        "attention=softmax",
                               "num_hidden_layers=3", "parameter_names=gemma", "num_heads=2"};
        const char *const paths[] = {in_folder("gemma"), in_folder("gemma.gguf")};
        int n = 6;
        for (int i = 1; i < 16 && settings[k][i]; i++) all[n++] = settings[k][i];
        mhla_model *m, *back;
        mhla_tape *t;
        rng r = {k + 1};
        ASSERT_OK(mhla_model_create(&m, "lm_micro", all, n, 3));
        for (int i = 0; i < mhla_params_count(m->params); i++) {
            mhla_param *p = mhla_params_at(m->params, i);
            for (int64_t j = 0; j < p->count; j++) p->data[j] += 0.1f * rng_signed(&r);
            mhla_param_touch(p);
        }
        ASSERT_OK(mhla_tape_create(&t, NULL));
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        mhla_tensor *y = mhla_lm_logits(t, m->net, mhla_lm_forward(t, m->net, &(mhla_lm_run){0}, ids, 1, T));
        ASSERT_OK(mhla_tape_status(t));
        float *want = new_bytes(sizeof *want * T * 24);
        memcpy(want, y->data, sizeof *want * T * 24);
        ASSERT_OK(mhla_model_save(m, paths[0]));
        ASSERT_OK(mhla_lm_convert(paths[1], paths[0], NULL, NULL));
        size_t size;
        char *bytes = read_file(paths[1], &size);
        assert_non_null(memmem(bytes, size, settings[k][0], strlen(settings[k][0])));
        free(bytes);
        for (int i = 0; i < 2; i++) {
            ASSERT_OK(mhla_model_open(&back, paths[i]));
            mhla_tape_begin(t, MHLA_TAPE_INFER);
            y = mhla_lm_logits(t, back->net, mhla_lm_forward(t, back->net, &(mhla_lm_run){0}, ids, 1, T));
            ASSERT_OK(mhla_tape_status(t));
            ASSERT_CLOSE(y->data, want, T * 24, 2e-6, "kind %d, opened again %d", (int)k, i);
            const mhla_param *norm = mhla_params_find(back->params, "model.norm.weight"),
                             *own = mhla_params_find(m->params, "model.norm.weight");
            for (int j = 0; j < 32; j++) assert_true(fabsf(norm->data[j] - own->data[j]) <= (i ? 1.2e-7f : 0.0f));
            mhla_model_free(back);
        }
        free(want);
        mhla_tape_free(t);
        mhla_model_free(m);
    }
}

/* Mamba and Mamba2 as llama.cpp has them: its names, its axes, and rates in place of their logarithms. What it cannot hold goes under our
 * own name. */
static void gguf_mamba(void **state) {
    (void)state;
    static const char *const attentions[] = {"attention=mamba", "attention=mamba2"};
    for (int k = 0; k < 2; k++) {
        const char *const settings[] = {"vocab_size=24", "hidden_size=32", "num_hidden_layers=2", attentions[k],
                                        "tie_word_embeddings=false"};
        mhla_model *m, *back;
        ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, 5, 3));
        ASSERT_OK(mhla_model_save(m, in_folder("mamba")));
        ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("mamba"), NULL, NULL));
        mhla_gguf *f;
        const mhla_gguf_tensor *s;
        ASSERT_OK(mhla_gguf_open(&f, in_folder("a.gguf")));
        const struct {
            const char *name;
            int64_t rank, shape[2];
        } tensors[] = {{"blk.1.ssm_conv1d.weight", 2, {k ? 320 : 64, 4}},
                       {"blk.1.ssm_a", 2, {k ? 2 : 64, k ? 1 : 16}},
                       {"blk.1.ssm_d", k ? 2 : 1, {k ? 2 : 64, 1}},
                       {"blk.1.ssm_in.weight", 2, {k ? 64 + 320 + 2 : 128, 32}},
                       {k ? "blk.1.ssm_norm.weight" : "blk.1.ssm_x.weight", 2, {k ? 1 : 8 + 32, 64}},
                       {"output_norm.weight", 1, {32}}};
        for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
            ASSERT_OK(mhla_gguf_need_tensor(&s, f, tensors[i].name));
            ASSERT_OK(mhla_gguf_check_shape(s, (int)tensors[i].rank, tensors[i].shape));
        }
        ASSERT_OK(mhla_gguf_need_tensor(&s, f, "blk.0.ssm_a"));
        float rate;
        memcpy(&rate, s->data, sizeof rate);
        assert_true(fabsf(rate + 1.0f) < 1e-6f); /* A_log begins with log 1 */
        mhla_gguf_close(f);
        ASSERT_OK(mhla_model_open(&back, in_folder("a.gguf")));
        assert_int_equal(mhla_params_count(m->params), mhla_params_count(back->params));
        for (int i = 0; i < mhla_params_count(m->params); i++) {
            const mhla_param *p = mhla_params_at(m->params, i), *q = mhla_params_find(back->params, p->name);
            assert_non_null(q);
            for (int64_t j = 0; j < p->count; j++)
                if (!(fabsf(p->data[j] - q->data[j]) <= 1e-6f)) fail_msg("%s[%lld]", p->name, (long long)j);
        }
        mhla_model_free(m);
        mhla_model_free(back);
    }
    static const char *const groups[] = {"vocab_size=24",    "hidden_size=32", "num_hidden_layers=1",
                                         "attention=mamba2", "num_heads=4",    "n_groups=2"};
    mhla_model *m;
    size_t size;
    ASSERT_OK(mhla_model_create(&m, "lm_micro", groups, 6, 3));
    ASSERT_OK(mhla_model_save(m, in_folder("mamba")));
    mhla_model_free(m);
    ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("mamba"), NULL, NULL));
    char *bytes = read_file(in_folder("a.gguf"), &size);
    assert_non_null(memmem(bytes, size, "mhla.config", 11));
    free(bytes);
    ASSERT_OK(mhla_model_open(&m, in_folder("a.gguf")));
    mhla_model_free(m);
    /* with a norm for each group it can */
    static const char *const norms[] = {"vocab_size=24", "hidden_size=32", "num_hidden_layers=1", "attention=mamba2",
                                        "num_heads=4",   "n_groups=2",     "norm_groups=2"};
    ASSERT_OK(mhla_model_create(&m, "lm_micro", norms, 7, 3));
    ASSERT_OK(mhla_model_save(m, in_folder("mamba")));
    mhla_model_free(m);
    ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("mamba"), NULL, NULL));
    mhla_gguf *f;
    const mhla_gguf_tensor *norm;
    ASSERT_OK(mhla_gguf_open(&f, in_folder("a.gguf")));
    ASSERT_OK(mhla_gguf_need_tensor(&norm, f, "blk.0.ssm_norm.weight"));
    ASSERT_OK(mhla_gguf_check_shape(norm, 2, (const int64_t[]){2, 32}));
    mhla_gguf_close(f);
    ASSERT_OK(mhla_model_open(&m, in_folder("a.gguf")));
    mhla_model_free(m);
}

/* A GGUF of others: the ends of text, turn and message, without our own key. */
static void gguf_ends(void **state) {
    (void)state;
    size_t size;
    write_model("softmax", "{\"eos_token_id\": [3, 5, 8, 3]}");
    ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("model"), NULL, NULL));
    char *bytes = read_file(in_folder("a.gguf"), &size);
    static const char key[] = "mhla.eos_token_ids";
    char *at = memmem(bytes, size, key, sizeof key - 1);
    assert_non_null(at);
    *at = 'n';
    write_file(in_folder("b.gguf"), bytes, size);
    expect_ends(in_folder("b.gguf"), 3, (const int32_t[]){3, 5, 8}, 3);
    *at = 'm';
    at += sizeof key - 1 + 4 + 4 + 8; /* kind, kind of the elements, count */
    at[4] = 24;                       /* the second token */
    write_file(in_folder("b.gguf"), bytes, size);
    mhla_model *m;
    ASSERT_FAILS(mhla_model_open(&m, in_folder("b.gguf")), MHLA_EDATA, "mhla.eos_token_ids is 24: there are 24 tokens");
    free(bytes);
}

static void wrong_ends(void **state) {
    (void)state;
    static const struct {
        const char *file, *text, *says;
    } wrong[] = {
        {"config.json", "{\"eos_token_id\": [1, 24]}", "config.json: \"eos_token_id\"[1] is not a token from 0 to 23"},
        {"config.json", "{\"eos_token_id\": [1, \"2\"]}", "\"eos_token_id\"[1]"},
        {"config.json", "{\"eos_token_id\": [0.5]}", "\"eos_token_id\"[0]"},
        {"generation_config.json", "{\"eos_token_id\": \"</s>\"}", "generation_config.json: \"eos_token_id\"[0]"},
        {"generation_config.json", "{\"eos_token_id\": [-1]}", "generation_config.json: \"eos_token_id\"[0]"},
        {"generation_config.json", "[1]", "generation_config.json: no JSON object"},
        {"generation_config.json", "{\"eos_token_id\": [", "generation_config.json"},
        {"generation_config.json",
         "{\"eos_token_id\": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}",
         "has 33 tokens: expected 32 at most"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mhla_model *m;
        const int own = strcmp(wrong[i].file, "config.json") == 0;
        write_model("softmax", own ? wrong[i].text : NULL);
        if (!own) put_text(in_folder("model/generation_config.json"), wrong[i].text);
        ASSERT_FAILS(mhla_model_open(&m, in_folder("model")), MHLA_EDATA, wrong[i].says);
    }
}

/* ---- Scaled rotary embeddings ---- */

/* 8 pairs, theta 10000, 256 positions: frequencies and the factor of cosines and sines as transformers 5.22 has them. */
static const struct scaled {
    const char *name, *rope;
    double frequency[8], attention;
} scaled[] = {
    {"linear",
     "{\"rope_type\":\"linear\",\"factor\":4.0}",
     {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
     1.0},
    {"llama3",
     "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
     "\"original_max_position_embeddings\":64}",
     {1.0, 0.244384587, 0.0130422562, 0.00395284733, 0.00124999997, 0.000395284733, 0.000125000006, 3.95284733e-05},
     1.0},
    {"yarn",
     "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":64,\"beta_fast\":null}",
     {1.0, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
     1.138629436111989},
    {"yarn, its own factor for attention",
     "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":64,\"attention_factor\":1.3,"
     "\"beta_fast\":16,\"beta_slow\":2}",
     {1.0, 0.197642356, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
     1.3},
    {"yarn, mscale",
     "{\"rope_type\":\"yarn\",\"factor\":16.0,\"original_max_position_embeddings\":64,\"mscale\":0.707,"
     "\"mscale_all_dim\":1.0}",
     {1.0, 0.217406571, 0.0374999978, 0.00197642366, 0.000624999986, 0.000197642366, 6.2500003e-05, 1.97642366e-05},
     0.9363975061530204},
    {"yarn, not rounded",
     "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":64,\"truncate\":false}",
     {1.0, 0.198583528, 0.0255952496, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
     1.138629436111989},
    {"yarn of all positions",
     "{\"rope_type\":\"yarn\",\"factor\":2}",
     {1.0, 0.276699275, 0.075000003, 0.0197642371, 0.00499999989, 0.00158113893, 0.000500000024, 0.000158113893},
     1.0693147180559945},
    {"longrope",
     "{\"rope_type\":\"longrope\",\"short_factor\":[1,1.3,1.6,1.9,2.2,2.5,2.8,3.1],"
     "\"long_factor\":[1,1.3,1.6,1.9,2.2,2.5,2.8,3.1],\"factor\":4.0,\"original_max_position_embeddings\":64}",
     {1.0, 0.243252128, 0.0625, 0.016643567, 0.0045454544, 0.00126491114, 0.000357142853, 0.000102008962},
     1.1547005383792517},
};
enum { SCALED = sizeof scaled / sizeof *scaled, POSITIONS = 300 };

static void expect_table(const struct scaled *x, const char *path, const char *what) {
    mhla_model *m;
    const float *cosine, *sine;
    float row[2][8];
    int64_t have;
    ASSERT_OK(mhla_model_open(&m, path));
    const mhla_lm_config *config = mhla_lm_config_of(m->net);
    mhla_angles angles = {.dims = 16, .theta = real_of(config, 0, "rope_theta"), .scaling = &config->scaling};
    ASSERT_OK(mhla_angles_table(&angles, POSITIONS, &cosine, &sine, &have));
    for (int t = 0; t < POSITIONS; t++)
        for (int j = 0; j < 8; j++) {
            const double c = x->attention * cos(t * x->frequency[j]), s = x->attention * sin(t * x->frequency[j]);
            if (!(fabs((double)cosine[t * 8 + j] - c) < 5e-5 && fabs((double)sine[t * 8 + j] - s) < 5e-5))
                fail_msg("%s, %s: pair %d at %d: %.9g %.9g, expected %.9g %.9g", x->name, what, j, t,
                         (double)cosine[t * 8 + j], (double)sine[t * 8 + j], c, s);
        }
    mhla_scaling_rows(row[0], row[1], angles.scaling, angles.theta, angles.dims, POSITIONS - 1, 1);
    assert_memory_equal(row[0], cosine + (POSITIONS - 1) * 8, sizeof row[0]);
    assert_memory_equal(row[1], sine + (POSITIONS - 1) * 8, sizeof row[1]);
    mhla_angles_free(&angles);
    mhla_model_free(m);
}

static void write_scaled(const char *rope, int spelling) {
    char changes[1024];
    char *copy = strdup(rope), *type = spelling == 1 ? strstr(copy, "rope_type") : NULL;
    if (type) { /* "type", as it was once called */
        memmove(type, type + 5, strlen(type + 5) + 1);
    }
    snprintf(changes, sizeof changes, "{\"max_position_embeddings\": 256, \"rope_theta\": 10000.0, \"%s\": %s}",
             spelling == 2 ? "rope_parameters" : "rope_scaling", copy);
    free(copy);
    write_model("softmax", changes);
}

static void scalings(void **state) {
    (void)state;
    for (int i = 0; i < SCALED; i++) {
        mhla_model *m;
        for (int spelling = 0; spelling < 3; spelling++) {
            write_scaled(scaled[i].rope, spelling);
            expect_table(&scaled[i], in_folder("model"), "its folder");
        }
        ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("model"), NULL, NULL));
        expect_table(&scaled[i], in_folder("a.gguf"), "its GGUF");
        ASSERT_OK(mhla_lm_convert(in_folder("b.gguf"), in_folder("a.gguf"), NULL, NULL));
        expect_table(&scaled[i], in_folder("b.gguf"), "the GGUF of its GGUF");
        ASSERT_OK(mhla_model_open(&m, in_folder("b.gguf"))); /* a config.json that is made anew */
        ASSERT_OK(mhla_model_save(m, in_folder("again")));
        mhla_model_free(m);
        expect_table(&scaled[i], in_folder("again"), "the folder of its GGUF");
    }
}

/* GGUF files that say it in other ways. */
static void patch(const char *from, const char *to) {
    size_t size;
    char *bytes = read_file(in_folder("a.gguf"), &size), *at = memmem(bytes, size, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    write_file(in_folder("b.gguf"), bytes, size);
    free(bytes);
}

static void gguf_scalings(void **state) {
    (void)state;
    static const struct scaled plain = {
        "none", "", {1.0, 0.31622776602, 0.1, 0.031622776602, 0.01, 0.0031622776602, 0.001, 0.00031622776602}, 1.0};
    mhla_model *m;
    write_scaled(scaled[0].rope, 0);
    ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("model"), NULL, NULL));
    patch("llama.rope.scaling.type", "llama.rope.scaling.typo"); /* a factor alone is linear */
    expect_table(&scaled[0], in_folder("b.gguf"), "no type");
    write_scaled(scaled[2].rope, 0);
    ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("model"), NULL, NULL));
    patch("yarn", "none");
    expect_table(&plain, in_folder("b.gguf"), "type none");
    patch("yarn", "yard");
    ASSERT_FAILS(mhla_model_open(&m, in_folder("b.gguf")), MHLA_ENOTSUP, "llama.rope.scaling.type is \"yard\"");
    write_scaled(scaled[1].rope, 0);
    ASSERT_OK(mhla_lm_convert(in_folder("a.gguf"), in_folder("model"), NULL, NULL));
    patch("rope_freqs.weight", "rope_freqz.weight");
    ASSERT_FAILS(mhla_model_open(&m, in_folder("b.gguf")), MHLA_ENOTSUP, "tensor rope_freqz.weight");
}

static void wrong_scalings(void **state) {
    (void)state;
    static const struct {
        const char *rope;
        mhla_status status;
        const char *says;
    } wrong[] = {
        {"{\"rope_type\":\"dynamic\",\"factor\":2}", MHLA_ENOTSUP, "\"rope_scaling\": rope_type \"dynamic\""},
        {"{\"rope_type\":\"su\"}", MHLA_ENOTSUP, "\"su\" is not known"},
        {"{\"rope_type\":7}", MHLA_EDATA, "\"rope_scaling\" is not an object with a \"rope_type\""},
        {"\"yarn\"", MHLA_EDATA, "\"rope_scaling\" is not an object"},
        {"{\"rope_type\":\"linear\"}", MHLA_EDATA, "lacks \"factor\""},
        {"{\"rope_type\":\"linear\",\"factor\":0}", MHLA_EDATA, "\"factor\""},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}", MHLA_EDATA, "lacks \"high_freq_factor\""},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}", MHLA_EDATA,
         "\"high_freq_factor\" is 4"},
        {"{\"rope_type\":\"yarn\",\"factor\":\"4\"}", MHLA_EDATA, "\"factor\""},
        {"{\"rope_type\":\"yarn\",\"beta_fast\":1,\"beta_slow\":2}", MHLA_EDATA, "\"beta_fast\" is 1"},
        {"{\"rope_type\":\"yarn\",\"rope_theta\":1}", MHLA_EDATA, "yarn needs more than 1"},
        {"{\"rope_type\":\"yarn\",\"original_max_position_embeddings\":1.5}", MHLA_EDATA, "original_max_position"},
        {"{\"rope_type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[2]}", MHLA_ENOTSUP, "long texts"},
        {"{\"rope_type\":\"longrope\",\"short_factor\":[1]}", MHLA_EDATA, "no lists"},
        {"{\"rope_type\":\"longrope\",\"short_factor\":[1,0],\"long_factor\":[1,0]}", MHLA_EDATA,
         "\"short_factor\"[1]"},
        {"{\"rope_type\":\"longrope\",\"short_factor\":[1,2],\"long_factor\":[1,2]}", MHLA_EDATA,
         "scaled by 2 factors: a head has 8 pairs"},
        {"{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5}", MHLA_ENOTSUP, "partial_rotary_factor"},
    };
    mhla_model *m;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_scaled(wrong[i].rope, 0);
        ASSERT_FAILS(mhla_model_open(&m, in_folder("model")), wrong[i].status, wrong[i].says);
    }
    write_model("mhla", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}");
    ASSERT_FAILS(mhla_model_open(&m, in_folder("model")), MHLA_ENOTSUP, "softmax attention only");
    write_model("mhla", "{\"rope_scaling\": {\"type\": \"default\"}}");
    ASSERT_OK(mhla_model_open(&m, in_folder("model")));
    mhla_model_free(m);
}

/* Sequences as the whole text at once; a state is of its scaling. */
static void scaled_sequences(void **state) {
    (void)state;
    enum { T = 200, V = 24 };
    int32_t ids[T];
    rng r = {3};
    float *all[3];
    mhla_model *m;
    mhla_sequence *s;
    for (int i = 0; i < T; i++) ids[i] = rng_below(&r, V);
    write_scaled(scaled[3].rope, 0);
    ASSERT_OK(mhla_model_open(&m, in_folder("model")));
    for (int i = 0; i < mhla_params_count(m->params); i++) { /* weights that show what attention does */
        mhla_param *p = mhla_params_at(m->params, i);
        for (int64_t k = 0; k < p->count && p->dims > 1; k++) p->data[k] = 0.5f * rng_signed(&r);
        mhla_param_touch(p);
    }
    mhla_tape *t;
    ASSERT_OK(mhla_tape_create(&t, NULL));
    mhla_tape_begin(t, MHLA_TAPE_INFER);
    const mhla_tensor *y =
        mhla_lm_logits(t, ((mhla_lm *)m->net), mhla_lm_forward(t, ((mhla_lm *)m->net), &(mhla_lm_run){0}, ids, 1, T));
    ASSERT_OK(mhla_tape_status(t));
    for (int split = 0; split < 2; split++) {
        const mhla_sequence_desc desc = {.size = sizeof desc};
        ASSERT_OK(mhla_sequence_create(&s, m, &desc));
        all[split] = new_poisoned((int64_t)T * V);
        for (int at = 0; at < T; at += split ? 25 : 1) {
            const mhla_feed f = {.size = sizeof f,
                                 .sequence = s,
                                 .ids = ids + at,
                                 .count = split ? 25 : 1,
                                 .all_logits = all[split] + (size_t)at * V};
            ASSERT_OK(mhla_lm_feed(m, &f, 1));
        }
        for (int i = 0; i < T; i++) ASSERT_CLOSE(all[split] + i * V, y->data + i * y->ld, V, 3e-5, "token %d", i);
        if (split) ASSERT_OK(mhla_sequence_save(s, in_folder("state")));
        mhla_sequence_free(s);
        free(all[split]);
    }
    mhla_tape_free(t);
    ASSERT_OK(mhla_model_save(m, in_folder("again")));
    mhla_model_free(m);
    ASSERT_OK(mhla_model_open(&m, in_folder("again")));
    ASSERT_OK(mhla_sequence_load(&s, m, in_folder("state")));
    mhla_sequence_free(s);
    mhla_model_free(m);
    json_t *tree;
    ASSERT_OK(mhla_json_load(&tree, in_folder("again/config.json")));
    json_object_set_new(json_object_get(tree, "rope_scaling"), "factor", json_real(5.0));
    ASSERT_OK(mhla_json_save(tree, in_folder("again/config.json")));
    json_decref(tree);
    ASSERT_OK(mhla_model_open(&m, in_folder("again")));
    ASSERT_FAILS(mhla_sequence_load(&s, m, in_folder("state")), MHLA_EDATA, "of another model");
    mhla_model_free(m);
}

/* Turned by more than an angle, the gradient of q and k is still that of differences. */
static double loss_of(mhla_tape *t, mhla_model *m, const int32_t *ids, const int32_t *labels, int n) {
    mhla_tape_begin(t, MHLA_TAPE_RECORD);
    mhla_tensor *h = mhla_lm_forward(t, ((mhla_lm *)m->net), &(mhla_lm_run){0}, ids, 1, n);
    mhla_tensor *loss = mhla_nn_cross_entropy(t, mhla_lm_logits(t, ((mhla_lm *)m->net), h), labels, NULL, 0.0f, NULL);
    ASSERT_OK(mhla_tape_status(t));
    mhla_params_clear_grads(m->params);
    ASSERT_OK(mhla_tape_backward(t, loss, 1.0f));
    return (double)*loss->data;
}

static void scaled_gradients(void **state) {
    (void)state;
    enum { T = 40 };
    int32_t ids[T + 1];
    rng r = {3};
    mhla_model *m;
    mhla_tape *t;
    for (int i = 0; i <= T; i++) ids[i] = rng_below(&r, 24);
    write_scaled("{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":64,"
                 "\"attention_factor\":3}",
                 0);
    ASSERT_OK(mhla_model_open(&m, in_folder("model")));
    ASSERT_OK(mhla_tape_create(&t, NULL));
    for (int i = 0; i < mhla_params_count(m->params); i++) {
        mhla_param *p = mhla_params_at(m->params, i);
        for (int64_t k = 0; k < p->count && p->dims > 1; k++) p->data[k] = 0.3f * rng_signed(&r);
        mhla_param_touch(p);
    }
    static const char *const names[] = {"model.layers.0.self_attn.q_proj.weight",
                                        "model.layers.0.self_attn.k_proj.weight"};
    for (int i = 0; i < 2; i++) {
        mhla_param *p = mhla_params_find(m->params, names[i]);
        assert_non_null(p);
        loss_of(t, m, ids, ids + 1, T);
        double size = 0.0, two[2];
        float *d = new_bytes(sizeof *d * (size_t)p->count), *kept = new_bytes(sizeof *kept * (size_t)p->count);
        memcpy(d, p->grad, sizeof *d * (size_t)p->count);
        memcpy(kept, p->data, sizeof *kept * (size_t)p->count);
        for (int64_t k = 0; k < p->count; k++) size += (double)d[k] * (double)d[k];
        size = sqrt(size);
        assert_true(size > 1e-2); /* it matters */
        for (int side = 0; side < 2; side++) {
            for (int64_t k = 0; k < p->count; k++)
                p->data[k] = kept[k] + (float)((side ? -2e-3 : 2e-3) * (double)d[k] / size);
            mhla_param_touch(p);
            two[side] = loss_of(t, m, ids, ids + 1, T);
        }
        const double found = (two[0] - two[1]) / 4e-3;
        if (!(fabs(found - size) < 0.01 * size + 1e-4)) fail_msg("%s: %g, by differences %g", names[i], size, found);
        memcpy(p->data, kept, sizeof *kept * (size_t)p->count);
        mhla_param_touch(p);
        free(d);
        free(kept);
    }
    mhla_tape_free(t);
    mhla_model_free(m);
}

/* ---- Recurrent models of flash-linear-attention and transformers ---- */

static mhla_lm_config config_of(const char *text) {
    mhla_lm_config c;
    json_t *tree;
    ASSERT_OK(mhla_json_parse(&tree, text, strlen(text), "c"));
    ASSERT_OK(mhla_lm_config_read(&c, tree, NULL, "c.json"));
    json_decref(tree);
    return c;
}

/* One key has two names, and which model wrote a file says how Mamba2 norms its groups. */
static void foreign_keys(void **state) {
    (void)state;
    static const struct {
        const char *text, *key;
        int value;
    } rows[] = {
        {"{\"model_type\":\"mamba\"}", "time_step_rank", 128},
        {"{\"model_type\":\"mamba\",\"dt_rank\":7}", "time_step_rank", 7},
        {"{\"model_type\":\"mamba\",\"dt_rank\":\"auto\"}", "time_step_rank", 128},
        {"{\"model_type\":\"mamba\",\"dt_rank\":7,\"time_step_rank\":5}", "time_step_rank", 5},
        {"{\"model_type\":\"mamba2\",\"n_groups\":2,\"norm_eps\":1e-5,\"transformers_version\":\"5.23.0\"}",
         "norm_groups", 0},
        {"{\"model_type\":\"mamba2\",\"n_groups\":2,\"rmsnorm\":true}", "norm_groups", 2},
        {"{\"model_type\":\"mamba2\",\"n_groups\":2,\"layer_norm_epsilon\":1e-5,\"transformers_version\":\"5.22.0\"}",
         "norm_groups", 0},
        {"{\"model_type\":\"mamba2\",\"n_groups\":2,\"layer_norm_epsilon\":1e-5,\"transformers_version\":\"5.23.0\"}",
         "norm_groups", 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const mhla_lm_config c = config_of(rows[i].text);
        if (int_of(&c, 0, rows[i].key) != rows[i].value)
            fail_msg("%s: %s is %d", rows[i].text, rows[i].key, int_of(&c, 0, rows[i].key));
        assert_int_equal(mhla_lm_context(&c), 0); /* nothing ends */
    }
    mhla_lm_config c = config_of("{\"model_type\":\"mamba2\",\"dt_limit\":[0.25,0.5]}");
    json_t *tree = mhla_lm_config_tree(&c);
    for (int i = 0; i < 2; i++) /* both names, for either reader */
        assert_true(json_real_value(json_array_get(json_object_get(tree, i ? "dt_limit" : "time_step_limit"), 1)) ==
                    0.5);
    json_decref(tree);
}

/* What is written has the words of flash-linear-attention: no feature map is null there. */
static void written_keys(void **state) {
    (void)state;
    static const char *const texts[] = {"{\"model_type\":\"gla\",\"attn_extends\":\"gla\"}",
                                        "{\"model_type\":\"retnet\"}"};
    for (int i = 0; i < 2; i++) {
        mhla_lm_config c = config_of(texts[i]);
        json_t *tree = mhla_lm_config_tree(&c);
        assert_true(json_is_null(json_object_get(tree, "feature_map")));
        json_decref(tree);
    }
    mhla_lm_config c = config_of("{\"model_type\":\"gla\",\"attn_extends\":\"gla\",\"feature_map\":\"swish\"}");
    json_t *tree = mhla_lm_config_tree(&c);
    assert_string_equal(json_string_value(json_object_get(tree, "feature_map")), "swish");
    json_decref(tree);
    c = config_of("{\"model_type\":\"mamba\",\"time_step_rank\":9}");
    tree = mhla_lm_config_tree(&c);
    assert_int_equal(json_integer_value(json_object_get(tree, "dt_rank")), 9);
    json_decref(tree);
}

/* Tensors of GLA do not excuse an attn_extends that nobody knows; and that nothing limits a model's length is not lost. */
static void unknown_kind(void **state) {
    (void)state;
    static const char *const kinds[] = {"mhla", "glb"}; /* tensors decide between MHLA and GLA */
    const char *settings[] = {"attention=gla", "num_hidden_layers=1", "max_position_embeddings=0"};
    mhla_model *m;
    json_t *tree;
    ASSERT_OK(mhla_model_create(&m, "lm_micro", settings, 3, 3));
    ASSERT_OK(mhla_model_save(m, in_folder("model")));
    mhla_model_free(m);
    for (int i = 0; i < 2; i++) {
        mhla_lm_info info = {.size = sizeof info};
        ASSERT_OK(mhla_json_load(&tree, in_folder("model/config.json")));
        json_object_set_new(tree, "attn_extends", json_string(kinds[i]));
        ASSERT_OK(mhla_json_save(tree, in_folder("model/config.json")));
        json_decref(tree);
        if (i == 1) {
            ASSERT_FAILS(mhla_model_open(&m, in_folder("model")), MHLA_ENOTSUP, "attn_extends is \"glb\"");
            continue;
        }
        ASSERT_OK(mhla_model_open(&m, in_folder("model")));
        ASSERT_OK(mhla_lm_query(m, &info));
        assert_string_equal(info.attention, "gla");
        assert_int_equal(info.context, 0);
        mhla_model_free(m);
    }
}

/* A sigmoid of 0 is a half: the gate halves what comes without one. */
static void sigmoid_gate(void **state) {
    (void)state;
    enum { T = 12 };
    static const char *const usual[] = {"attention=gated_deltanet", "vocab_size=24", "hidden_size=32",
                                        "num_hidden_layers=1",      "num_heads=2",   "initializer_range=0.3"};
    mhla_tensor *y[2];
    mhla_tape *t[2];
    mhla_model *m[2];
    int32_t ids[T];
    for (int i = 0; i < T; i++) ids[i] = i * 5 % 24;
    for (int gate = 0; gate < 2; gate++) {
        const char *settings[8];
        memcpy(settings, usual, sizeof usual);
        settings[6] = gate ? "use_gate=true" : "use_gate=false";
        settings[7] = "output_gate_activation=sigmoid";
        ASSERT_OK(mhla_model_create(&m[gate], "lm_micro", settings, 8, 3));
        for (int i = 0; i < mhla_params_count(m[gate]->params); i++) {
            mhla_param *p = mhla_params_at(m[gate]->params, i);
            const mhla_param *same = gate ? mhla_params_find(m[0]->params, p->name) : NULL;
            for (int64_t k = 0; k < p->count; k++) {
                if (same)
                    p->data[k] = same->data[k] * (strstr(p->name, "o_norm") ? 2.0f : 1.0f);
                else if (strstr(p->name, "g_proj"))
                    p->data[k] = 0.0f;
            }
            mhla_param_touch(p);
        }
        ASSERT_OK(mhla_tape_create(&t[gate], NULL));
        mhla_tape_begin(t[gate], MHLA_TAPE_INFER);
        y[gate] =
            mhla_lm_logits(t[gate], m[gate]->net, mhla_lm_forward(t[gate], m[gate]->net, &(mhla_lm_run){0}, ids, 1, T));
        ASSERT_OK(mhla_tape_status(t[gate]));
    }
    ASSERT_CLOSE(y[1]->data, y[0]->data, T * 24, 1e-6, "a gate of %d halves", T);
    for (int gate = 0; gate < 2; gate++) {
        mhla_tape_free(t[gate]);
        mhla_model_free(m[gate]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends),
        cmocka_unit_test(gguf_ends),
        cmocka_unit_test(gguf_names),
        cmocka_unit_test(gguf_mamba),
        cmocka_unit_test(gguf_gemma),
        cmocka_unit_test(wrong_ends),
        cmocka_unit_test(scalings),
        cmocka_unit_test(gguf_scalings),
        cmocka_unit_test(wrong_scalings),
        cmocka_unit_test(scaled_sequences),
        cmocka_unit_test(scaled_gradients),
        cmocka_unit_test(foreign_keys),
        cmocka_unit_test(written_keys),
        cmocka_unit_test(unknown_kind),
        cmocka_unit_test(sigmoid_gate),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
