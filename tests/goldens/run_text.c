/* run_model's part about text: language models whole, tokenizers, sampling, evaluation. What are no tensors goes in and out as
 * JSON, in the form of the goldens. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mhla/lm.h>

#include "core/status.h"
#include "file/json.h"
#include "models/language/lm.h"
#include "models/model.h"
#include "run.h"

/* Of a JSON array of whole numbers; malloc'ed. */
static int32_t *ids_of(const json_t *list, int64_t *count) {
    *count = (int64_t)json_array_size(list);
    int32_t *ids = malloc(sizeof *ids * (size_t)(*count + 1));
    for (int64_t i = 0; ids && i < *count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return ids;
}

static double real(const json_t *object, const char *key, double otherwise) {
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

/* Lists of cases in, a list of results out: `one` makes each. */
static mhla_status each_case(const char *in, const char *out, mhla_status (*one)(json_t *result, const json_t *c)) {
    json_t *cases = NULL, *results = json_array();
    mhla_status status = mhla_json_load(&cases, in);
    for (size_t i = 0; status == MHLA_OK && i < json_array_size(cases); i++) {
        json_t *result = json_object();
        json_array_append_new(results, result);
        status = one(result, json_array_get(cases, i));
    }
    if (status == MHLA_OK && json_dump_file(results, out, JSON_COMPACT) != 0)
        status = mhla_fail(MHLA_EIO, "%s cannot be written", out);
    json_decref(cases);
    json_decref(results);
    return status;
}

/* ---- A model of text: logits, loss, gradients; what it says next ---- */

static mhla_status forward(mhla_model *m, const mhla_safetensors *in) {
    mhla_status status = MHLA_OK;
    mhla_tape *t = NULL;
    const mhla_stored *s = mhla_safetensors_find(in, "in.input_ids");
    if (s == NULL || s->rank != 2) return mhla_fail(MHLA_EDATA, "no in.input_ids [B,T]");
    const int64_t B = s->shape[0], T = s->shape[1];
    const int layers = mhla_lm_config_of(m->net)->layers;
    char name[32];
    int32_t *ids = run_labels(in, "in.input_ids"), *given = run_labels(in, "in.labels"),
            *labels = malloc(sizeof *labels * (size_t)s->count);
    mhla_tensor **trace = calloc((size_t)layers + 1, sizeof(mhla_tensor *));
    if (ids == NULL || labels == NULL || trace == NULL) {
        status = mhla_fail(MHLA_ENOMEM, "no memory");
        goto done;
    }
    for (int64_t i = 0; given && i < s->count; i++) labels[i] = i % T + 1 < T && given[i + 1] >= 0 ? given[i + 1] : -1;
    if ((status = mhla_tape_create(&t, NULL)) != MHLA_OK) goto done;
    mhla_tape_begin(t, given ? MHLA_TAPE_RECORD : MHLA_TAPE_INFER);
    mhla_tensor *hidden = mhla_lm_forward(t, m->net, &(mhla_lm_run){.trace = trace}, ids, B, T),
                *logits = mhla_lm_logits(t, m->net, hidden), *loss;
    if ((status = mhla_tape_status(t)) != MHLA_OK) goto done;
    run_keep(logits->data, logits->dims, logits->shape, "out.logits");
    run_keep(hidden->data, hidden->dims, hidden->shape, "out.last_hidden_state");
    for (int i = 0; i <= layers; i++) {
        if (i) snprintf(name, sizeof name, "out.layers.%d", i - 1);
        run_keep(trace[i]->data, trace[i]->dims, trace[i]->shape, "%s", i ? name : "out.embed_scaled");
    }
    if (given == NULL) goto done;
    loss = mhla_nn_cross_entropy(t, logits, labels, NULL, 0.0f, NULL);
    if ((status = mhla_tape_status(t)) != MHLA_OK) goto done;
    run_keep(loss->data, 0, NULL, "out.loss");
    if ((status = mhla_tape_backward(t, loss, 1.0f)) == MHLA_OK) run_keep_grads(m->params);
done:
    mhla_tape_free(t);
    free(ids);
    free(given);
    free(labels);
    free(trace);
    return status;
}

/* in.prompt_ids [1,n] continued by the likeliest token until `count` new ones are there; the end of a text is a token as
 * any other. */
static mhla_status greedy(mhla_model *m, const mhla_safetensors *in, int64_t count) {
    const mhla_stored *s = mhla_safetensors_find(in, "in.prompt_ids");
    if (s == NULL || s->count < 1) return mhla_fail(MHLA_EDATA, "no in.prompt_ids");
    const int64_t n = s->count;
    mhla_status status = MHLA_ENOMEM;
    mhla_sequence *sequence = NULL;
    mhla_lm_info info = {.size = sizeof info};
    MHLA_TRY(mhla_lm_query(m, &info));
    int32_t *ids = run_labels(in, "in.prompt_ids"), *best = malloc(sizeof *best * (size_t)n);
    float *all = malloc(sizeof *all * (size_t)(n + count)), *logits = malloc(sizeof *logits * (size_t)info.vocabulary),
          *rows = malloc(sizeof *rows * (size_t)(count * info.vocabulary));
    if (ids == NULL || best == NULL || all == NULL || logits == NULL || rows == NULL) goto done;
    status = mhla_sequence_create(&sequence, m, &(mhla_sequence_desc){.size = sizeof(mhla_sequence_desc)});
    for (int64_t i = 0; i < n; i++) all[i] = (float)ids[i];
    int32_t next = 0;
    for (int64_t i = 0; status == MHLA_OK && i < count; i++) {
        const int64_t fed = i ? 1 : n;
        const mhla_feed feed = {.size = sizeof feed,
                                .sequence = sequence,
                                .ids = i ? &next : ids,
                                .count = fed,
                                .logits = logits,
                                .best = best};
        if ((status = mhla_lm_feed(m, &feed, 1)) != MHLA_OK) break;
        memcpy(rows + i * info.vocabulary, logits, sizeof *rows * (size_t)info.vocabulary);
        all[n + i] = (float)(next = best[fed - 1]);
    }
    if (status != MHLA_OK) goto done;
    run_keep(all, 2, (const int64_t[]){1, n + count}, "out.greedy_ids");
    run_keep(rows, 3, (const int64_t[]){1, count, info.vocabulary}, "out.greedy_logits");
done:
    mhla_sequence_free(sequence);
    free(ids);
    free(best);
    free(all);
    free(logits);
    free(rows);
    return status;
}

mhla_status run_lm(char **arg) { /* MODEL IN OUT NEW */
    mhla_model *m = NULL;
    mhla_safetensors *in = NULL;
    mhla_status status =
        mhla_model_open_as(&m, arg[0], &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = "float32"});
    if (status == MHLA_OK) status = mhla_model_need(m, MHLA_ROLE_DECODER);
    if (status == MHLA_OK) status = mhla_safetensors_open(&in, arg[1]);
    if (status == MHLA_OK) status = forward(m, in);
    if (status == MHLA_OK && atoll(arg[3]) > 0) status = greedy(m, in, atoll(arg[3]));
    mhla_safetensors_close(in);
    mhla_model_free(m);
    return status;
}

/* ---- Tokenizers: {"hex": bytes of a text, "flags": ..} -> ids; {"ids": [..], "flags": ..} -> hex ---- */

static mhla_tokenizer *tokenizer;

static mhla_status tokens(json_t *result, const json_t *c) {
    const unsigned flags = (unsigned)real(c, "flags", 0.0);
    const char *hex = json_string_value(json_object_get(c, "hex"));
    mhla_ids ids = {0};
    mhla_chars text = {0};
    mhla_status status;
    if (hex) {
        const size_t n = strlen(hex) / 2;
        char *bytes = malloc(n + 1);
        if (bytes == NULL) return mhla_fail(MHLA_ENOMEM, "no memory");
        for (size_t i = 0; i < n; i++) {
            const char two[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
            bytes[i] = (char)strtol(two, NULL, 16);
        }
        status = mhla_tokenizer_encode(tokenizer, &ids, bytes, n, flags);
        free(bytes);
        json_t *list = json_array(), *pieces = json_array();
        for (int64_t i = 0; status == MHLA_OK && i < ids.count; i++) {
            const char *piece = mhla_tokenizer_piece(tokenizer, ids.data[i]);
            json_array_append_new(list, json_integer(ids.data[i]));
            json_array_append_new(pieces, json_string(piece ? piece : ""));
        }
        json_object_set_new(result, "ids", list);
        json_object_set_new(result, "pieces", pieces);
        mhla_ids_free(&ids);
        return status;
    }
    int32_t *given = ids_of(json_object_get(c, "ids"), &ids.count);
    if (given == NULL) return mhla_fail(MHLA_ENOMEM, "no memory");
    status = mhla_tokenizer_decode(tokenizer, &text, given, ids.count, flags);
    char *out = malloc(2 * text.count + 1);
    for (size_t i = 0; out && i < text.count; i++) snprintf(out + 2 * i, 3, "%02x", (unsigned char)text.data[i]);
    if (out) json_object_set_new(result, "hex", json_stringn(out, 2 * text.count));
    free(out);
    free(given);
    mhla_chars_free(&text);
    return status;
}

mhla_status run_tokens(char **arg) { /* TOKENIZER IN OUT */
    mhla_status status = mhla_tokenizer_open(&tokenizer, arg[0]);
    if (status == MHLA_OK) status = each_case(arg[1], arg[2], tokens);
    mhla_tokenizer_free(tokenizer);
    return status;
}

/* ---- Sampling: what survives each stage of the order, and how likely it then is ---- */

static float logit_of(const json_t *v) {
    if (json_is_string(v)) return json_string_value(v)[0] == '-' ? -INFINITY : INFINITY;
    return (float)json_number_value(v);
}

/* Only the first `stages` of the order act. */
static mhla_status settings_of(mhla_sampling *s, mhla_bias *bias, const json_t *params, size_t stages) {
    const json_t *order = json_object_get(params, "order"), *list = json_object_get(params, "logit_bias");
    *s = (mhla_sampling){.size = sizeof *s, .temperature = 1.0, .bias = bias};
    for (size_t i = 0; i < stages; i++) {
        const char *stage = json_string_value(json_array_get(order, i));
        if (stage == NULL) return mhla_fail(MHLA_EDATA, "params.order has no stage %zu", i);
        if (strcmp(stage, "temperature") == 0) {
            s->temperature = real(params, stage, 1.0);
            if (i + 1 < json_array_size(order)) s->order = MHLA_SAMPLING_HF;
        } else if (strcmp(stage, "top_k") == 0) {
            s->top_k = (int)real(params, stage, 0.0);
        } else if (strcmp(stage, "top_p") == 0) {
            s->top_p = real(params, stage, 1.0);
            if (s->top_p == 0.0) s->top_p = 1e-300; /* ours: 0 is off, and so little keeps one */
        } else if (strcmp(stage, "min_p") == 0) {
            s->min_p = real(params, stage, 0.0);
        } else if (strcmp(stage, "penalties") != 0) {
            return mhla_fail(MHLA_ENOTSUP, "no stage \"%s\"", stage);
        }
    }
    s->min_keep = (int)real(params, "min_keep", 0.0);
    s->repeat_penalty = real(params, "repeat_penalty", 0.0);
    s->presence_penalty = real(params, "presence_penalty", 0.0);
    s->frequency_penalty = real(params, "frequency_penalty", 0.0);
    s->repeat_last = (int)real(params, "repeat_last_n", 64.0);
    if (s->repeat_last == 0) s->repeat_penalty = s->presence_penalty = s->frequency_penalty = 0.0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i);
        bias[i] = (mhla_bias){(int32_t)json_integer_value(json_array_get(pair, 0)), logit_of(json_array_get(pair, 1))};
        s->biases = (int)i + 1;
    }
    return MHLA_OK;
}

static mhla_status candidates(json_t *result, const json_t *c) {
    const json_t *params = json_object_get(c, "params"), *in = json_object_get(c, "logits");
    const int V = (int)json_array_size(in);
    int64_t n;
    int32_t *recent = ids_of(json_object_get(params, "last_tokens"), &n);
    float *logits = malloc(sizeof *logits * (size_t)(V + 1));
    mhla_candidate *got = malloc(sizeof *got * (size_t)(V + 1));
    mhla_bias *bias = malloc(sizeof *bias * (json_array_size(json_object_get(params, "logit_bias")) + 1));
    json_t *sizes = json_array(), *list = json_array();
    json_object_set_new(result, "sizes", sizes);
    json_object_set_new(result, "candidates", list);
    int count = 0;
    mhla_status status = recent && logits && got && bias ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory");
    for (int i = 0; status == MHLA_OK && i < V; i++) logits[i] = logit_of(json_array_get(in, (size_t)i));
    const size_t stages = json_array_size(json_object_get(params, "order"));
    for (size_t k = 1; status == MHLA_OK && k <= stages; k++) {
        mhla_sampling s;
        status = settings_of(&s, bias, params, k);
        if (status == MHLA_OK) status = mhla_sample_candidates(&s, logits, V, recent, n, got, &count);
        json_array_append_new(sizes, json_integer(count));
    }
    for (int i = 0; status == MHLA_OK && i < count; i++)
        json_array_append_new(list, json_pack("[i,f]", (int)got[i].id, (double)got[i].probability));
    free(recent);
    free(logits);
    free(got);
    free(bias);
    return status;
}

mhla_status run_candidates(char **arg) { return each_case(arg[0], arg[1], candidates); } /* IN OUT */

/* ---- Evaluation ---- */

static mhla_model *evaluated;

static mhla_status perplexity(json_t *result, const json_t *c) {
    const char *text = json_string_value(json_object_get(c, "text"));
    const size_t bytes = json_string_length(json_object_get(c, "text"));
    mhla_perplexity p = {.size = sizeof p};
    const mhla_perplexity_desc d = {.size = sizeof d, .window = (int64_t)real(c, "max_length", 0.0)};
    MHLA_TRY(mhla_lm_perplexity(evaluated, &p, &text, &bytes, 1, &d, NULL, NULL));
    json_object_set_new(result, "tokens", json_integer(p.tokens));
    json_object_set_new(result, "words", json_integer(p.words));
    json_object_set_new(result, "bytes", json_integer(p.bytes));
    json_object_set_new(result, "loglikelihood", json_real(p.loglikelihood));
    json_object_set_new(result, "bits_per_byte", json_real(p.bits_per_byte));
    json_object_set_new(result, "byte_perplexity", json_real(p.byte_perplexity));
    json_object_set_new(result, "token_perplexity", json_real(p.token_perplexity));
    json_object_set_new(result, "word_perplexity", json_real(p.word_perplexity));
    mhla_perplexity_free(&p);
    return MHLA_OK;
}

static void answered(void *user, const mhla_choice_event *e) {
    json_t *row = json_array();
    json_array_append_new(user, row);
    for (int i = 0; i < e->choices; i++)
        json_array_append_new(row, json_pack("{s:f,s:f,s:b}", "loglikelihood", e->loglikelihood[i],
                                             "norm_loglikelihood", e->normalised[i], "is_greedy", e->greedy[i]));
}

mhla_status run_evaluation(char **arg) { /* MODEL IN OUT: rolling windows of JSON, choices of JSON lines */
    const size_t n = strlen(arg[1]);
    mhla_status status = mhla_model_open(&evaluated, arg[0]);
    if (status == MHLA_OK && n > 6 && strcmp(arg[1] + n - 6, ".jsonl") == 0) {
        json_t *results = json_array();
        mhla_choices c = {.size = sizeof c};
        status = mhla_lm_choices(evaluated, &c, arg[1], 0, answered, results);
        if (status == MHLA_OK && json_dump_file(results, arg[2], JSON_COMPACT) != 0)
            status = mhla_fail(MHLA_EIO, "%s cannot be written", arg[2]);
        json_decref(results);
    } else if (status == MHLA_OK) {
        status = each_case(arg[1], arg[2], perplexity);
    }
    mhla_model_free(evaluated);
    return status;
}
