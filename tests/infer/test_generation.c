/* Generations against a loop written out: feed, sample, decode. Alone, many at once, coming and going, with stop strings
 * cut anywhere, past the end of a sequence, and refused. The model is random and small, the tokenizer trained here. */
#include <mhla/lm.h>

#include "files.h"
#include "infer/stop.h"

static mhla_context *context;
static mhla_model *model;
static const mhla_tokenizer *tokenizer;
static int vocabulary;

static int make_model(void **state) {
    if (make_folder(state) != 0) return -1;
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    static const char text[] =
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
        "foolishness, it was the epoch of belief, it was the epoch of incredulity. Größe, naïve, 東京.\n";
    const mhla_context_desc one = {.size = sizeof one, .threads = 1};
    ASSERT_OK(mhla_context_create(&context, &one));
    const mhla_tokenizer_training how = {
        .size = sizeof how, .vocabulary = 320, .special = special, .specials = 3, .context = context};
    mhla_model *fresh;
    const char *settings[] = {"vocab_size=320"};
    write_file(in_folder("text.txt"), text, sizeof text - 1);
    ASSERT_OK(mhla_model_create(&fresh, "lm_micro", settings, 1, 5));
    ASSERT_OK(mhla_model_save(fresh, in_folder("model")));
    mhla_model_free(fresh);
    const char *files[] = {in_folder("text.txt")};
    ASSERT_OK(mhla_tokenizer_train(in_folder("model/tokenizer.json"), files, 1, &how, NULL, NULL));
    ASSERT_OK(mhla_model_open(&model, in_folder("model")));
    mhla_model_set_context(model, context);
    mhla_lm_info info = {.size = sizeof info};
    ASSERT_OK(mhla_lm_query(model, &info));
    vocabulary = info.vocabulary;
    tokenizer = mhla_lm_tokenizer(model);
    assert_non_null(tokenizer);
    return 0;
}

static int drop_model(void **state) {
    mhla_model_free(model);
    mhla_context_free(context);
    return remove_folder(state);
}

static const int32_t prompt[] = {40, 41, 42, 43, 44, 45, 46};
enum { PROMPT = 7, N = 40 };

static mhla_sequence *new_sequence(int64_t most) {
    const mhla_sequence_desc desc = {.size = sizeof desc, .max_tokens = most};
    mhla_sequence *s;
    ASSERT_OK(mhla_sequence_create(&s, model, &desc));
    return s;
}

/* By hand: n tokens after the prompt. */
static void by_hand(int32_t *ids, int n, const mhla_sampling *given) {
    mhla_lm_info info = {.size = sizeof info};
    ASSERT_OK(mhla_lm_query(model, &info));
    const mhla_bias never = {info.eos, -INFINITY}; /* ignore_eos */
    mhla_sampling own = *given, *sampling = &own;
    own.bias = &never;
    own.biases = info.eos >= 0;
    mhla_sequence *s = new_sequence(0);
    float *logits = new_poisoned(vocabulary);
    mhla_feed feed = {.size = sizeof feed, .sequence = s, .ids = prompt, .count = PROMPT, .logits = logits};
    for (int i = 0; i < n; i++) {
        ASSERT_OK(mhla_lm_feed(model, &feed, 1));
        const int64_t tokens = mhla_sequence_tokens(s);
        ASSERT_OK(mhla_sample(sampling, logits, vocabulary, mhla_sequence_ids(s), tokens, (uint64_t)tokens, &ids[i]));
        feed.ids = &ids[i];
        feed.count = 1;
    }
    free(logits);
    mhla_sequence_free(s);
}

static const mhla_sampling hot = {
    .size = sizeof hot, .temperature = 1.3, .top_k = 50, .repeat_penalty = 1.2, .seed = 11};

typedef struct result {
    char text[4096];
    size_t bytes;
    int32_t ids[N + 8];
    int count;
    mhla_finish finish;
    char stopped_by[64];
} result;

static void take(result *r, const mhla_generation *g) {
    mhla_piece p = {.size = sizeof p};
    mhla_generation_piece(g, &p);
    for (size_t at = 0; at < p.bytes;) { /* whole characters */
        const unsigned char c = (unsigned char)p.text[at];
        const size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        assert_true((c & 0xc0) != 0x80 && at + n <= p.bytes);
        at += n;
    }
    if (p.bytes) memcpy(r->text + r->bytes, p.text, p.bytes);
    r->bytes += p.bytes;
    if (p.id >= 0) {
        r->ids[r->count++] = p.id;
        assert_true(p.logprob <= 0.0F);
    }
    r->finish = p.finish;
    if (p.stopped_by) snprintf(r->stopped_by, sizeof r->stopped_by, "%s", p.stopped_by);
    assert_int_equal(p.finish, mhla_generation_finish(g));
}

static void run(result *r, mhla_sequence *s, const int32_t *ids, int64_t count, const mhla_generation_desc *desc) {
    mhla_generation *g;
    *r = (result){.count = 0};
    ASSERT_OK(mhla_generation_create(&g, s, ids, count, desc));
    while (mhla_generation_finish(g) == MHLA_FINISH_NONE) {
        ASSERT_OK(mhla_generation_step(model, &g, 1));
        take(r, g);
    }
    mhla_generation_free(g);
}

static void decoded(result *r, const int32_t *ids, int n) {
    mhla_chars text = {0};
    int32_t known[N]; /* the model has more tokens than the tokenizer has pieces: those are no text */
    int count = 0;
    for (int i = 0; i < n; i++)
        if (mhla_tokenizer_piece(tokenizer, ids[i])) known[count++] = ids[i];
    ASSERT_OK(mhla_tokenizer_decode(tokenizer, &text, known, count, MHLA_DECODE_SKIP_SPECIAL));
    assert_int_equal(r->bytes, text.count);
    assert_memory_equal(r->text, text.data, text.count);
    mhla_chars_free(&text);
}

static void alone(void **state) {
    (void)state;
    int32_t wanted[N];
    result r;
    by_hand(wanted, N, &hot);
    mhla_sequence *s = new_sequence(0);
    const mhla_generation_desc desc = {.size = sizeof desc, .sampling = &hot, .max_tokens = N, .ignore_eos = 1};
    run(&r, s, prompt, PROMPT, &desc);
    assert_int_equal(r.finish, MHLA_FINISH_LENGTH);
    assert_int_equal(r.count, N);
    assert_memory_equal(r.ids, wanted, sizeof wanted);
    decoded(&r, wanted, N);
    assert_int_equal(mhla_sequence_tokens(s), PROMPT + N - 1);
    mhla_sequence_free(s);
}

/* Twice N/2 tokens, the second half from the sequence as it stands, are N tokens. */
static void resumed(void **state) {
    (void)state;
    int32_t wanted[N];
    result r;
    by_hand(wanted, N, &hot);
    mhla_sequence *s = new_sequence(0);
    const mhla_generation_desc desc = {.size = sizeof desc, .sampling = &hot, .max_tokens = N / 2, .ignore_eos = 1};
    run(&r, s, prompt, PROMPT, &desc);
    assert_memory_equal(r.ids, wanted, sizeof wanted / 2);
    const mhla_feed last = {.size = sizeof last, .sequence = s, .ids = &wanted[N / 2 - 1], .count = 1};
    ASSERT_OK(mhla_lm_feed(model, &last, 1));
    run(&r, s, NULL, 0, &desc);
    assert_memory_equal(r.ids, wanted + N / 2, sizeof wanted / 2);
    mhla_sequence_free(s);
}

/* Eight with seeds of their own, forked from one reading, coming one step after the other and leaving early. */
static void together(void **state) {
    (void)state;
    enum { SIDE = 8 };
    mhla_sequence *base = new_sequence(0), *s[SIDE];
    mhla_generation *g[SIDE] = {NULL};
    result r[SIDE] = {{{0}, 0, {0}, 0, MHLA_FINISH_NONE, {0}}};
    const mhla_feed feed = {.size = sizeof feed, .sequence = base, .ids = prompt, .count = PROMPT - 1};
    ASSERT_OK(mhla_lm_feed(model, &feed, 1));
    int running = 0, started = 0;
    do {
        if (started < SIDE) {
            mhla_sampling own = hot;
            own.seed = 100 + (uint64_t)started;
            mhla_generation_desc desc = {.size = sizeof desc, .sampling = &own, .ignore_eos = 1};
            desc.max_tokens = N - 3 * started;
            ASSERT_OK(mhla_sequence_fork(&s[started], base));
            ASSERT_OK(mhla_generation_create(&g[started], s[started], &prompt[PROMPT - 1], 1, &desc));
            started++;
        }
        ASSERT_OK(mhla_generation_step(model, g, started));
        running = 0;
        for (int i = 0; i < started; i++) {
            if (r[i].finish == MHLA_FINISH_NONE) take(&r[i], g[i]);
            running += r[i].finish == MHLA_FINISH_NONE;
        }
    } while (running > 0);
    for (int i = 0; i < SIDE; i++) {
        int32_t wanted[N];
        mhla_sampling own = hot;
        own.seed = 100 + (uint64_t)i;
        by_hand(wanted, N - 3 * i, &own);
        assert_int_equal(r[i].count, N - 3 * i);
        assert_memory_equal(r[i].ids, wanted, sizeof *wanted * (size_t)(N - 3 * i));
        decoded(&r[i], wanted, N - 3 * i);
        mhla_generation_free(g[i]);
        mhla_sequence_free(s[i]);
    }
    mhla_sequence_free(base);
}

/* Any part of the text as the stop string ends it right before, whatever the tokens. */
static void stop_strings(void **state) {
    (void)state;
    result whole, r;
    mhla_sequence *s = new_sequence(0);
    mhla_generation_desc desc = {.size = sizeof desc, .sampling = &hot, .max_tokens = N, .ignore_eos = 1};
    run(&whole, s, prompt, PROMPT, &desc);
    mhla_sequence_free(s);
    assert_true(whole.bytes > 20);
    int tried = 0;
    for (size_t at = 0; at + 3 < whole.bytes; at += 5) {
        char stop[16] = {0};
        size_t from = at, to = at + 4;
        while (from > 0 && ((unsigned char)whole.text[from] & 0xc0) == 0x80) from--;
        while (to < whole.bytes && ((unsigned char)whole.text[to] & 0xc0) == 0x80) to++;
        memcpy(stop, whole.text + from, to - from);
        if (strlen(stop) != to - from) continue; /* a NUL in the text */
        const char *first = memmem(whole.text, whole.bytes, stop, to - from);
        const char *stops[] = {"never to be seen", stop};
        desc.stop = stops;
        desc.stops = 2;
        s = new_sequence(0);
        run(&r, s, prompt, PROMPT, &desc);
        mhla_sequence_free(s);
        assert_int_equal(r.finish, MHLA_FINISH_STOP);
        assert_string_equal(r.stopped_by, stop);
        assert_int_equal(r.bytes, first - whole.text);
        assert_memory_equal(r.text, whole.text, r.bytes);
        tried++;
    }
    assert_true(tried > 5);
}

/* Text cut in every way gives the same match and never hands out a part of it. */
static void matching(void **state) {
    (void)state;
    static const char *const texts[] = {"ab", "xabc", "\n\n", "aaab", "aab"};
    const mhla_stops stops = {texts, 5};
    rng r = {1};
    size_t longest = 0; /* of those that end in one place */
    assert_int_equal(mhla_stops_find(&stops, "xaaab", 5, 0, &longest), 3);
    assert_int_equal(longest, 1);
    for (int turn = 0; turn < 3000; turn++) {
        char text[24];
        const size_t size = (size_t)rng_below(&r, 24);
        for (size_t i = 0; i < size; i++) text[i] = "abcx\n"[rng_below(&r, 5)];
        size_t at = 0, cut_at = 0, given = 0, count = 0;
        const int whole = mhla_stops_find(&stops, text, size, 0, &at);
        int found = -1;
        while (count < size && found < 0) {
            const size_t more = 1 + (size_t)rng_below(&r, 4), seen = count;
            count = count + more < size ? count + more : size;
            found = mhla_stops_find(&stops, text, count, seen, &cut_at);
            if (found < 0) given = count - mhla_stops_hold(&stops, text, count);
        }
        assert_int_equal(found, whole);
        if (found >= 0) {
            assert_int_equal(cut_at, at);
            assert_true(given <= at);
        } else if (size > 0) {
            assert_true(given + 3 >= size);
        }
    }
}

static void ends(void **state) {
    (void)state;
    int32_t wanted[N];
    result r;
    by_hand(wanted, N, &hot);
    int k = 3; /* a token that has not come before */
    for (int i = 0; i < k; i++)
        if (wanted[i] == wanted[k]) i = -1, k++;
    mhla_sequence *s = new_sequence(0);
    mhla_generation_desc desc = {.size = sizeof desc, .sampling = &hot, .max_tokens = N, .ignore_eos = 1};
    desc.stop_ids = &wanted[k];
    desc.stop_id_count = 1;
    run(&r, s, prompt, PROMPT, &desc);
    assert_int_equal(r.finish, MHLA_FINISH_EOS);
    assert_int_equal(r.count, k + 1);
    decoded(&r, wanted, k);
    mhla_sequence_free(s);
    /* a special token spelled as a stop string ends it though decoding passes over it */
    const mhla_bias always = {mhla_tokenizer_id(tokenizer, "<|im_end|>"), 1000.0F};
    const char *stop[] = {"<|im_end|>"};
    s = new_sequence(0);
    mhla_sampling own = hot;
    own.bias = &always;
    own.biases = 1;
    desc = (mhla_generation_desc){.size = sizeof desc, .sampling = &own, .stop = stop, .stops = 1};
    run(&r, s, prompt, PROMPT, &desc);
    assert_int_equal(r.finish, MHLA_FINISH_STOP);
    assert_string_equal(r.stopped_by, "<|im_end|>");
    assert_int_equal(r.count, 1);
    mhla_sequence_free(s);
}

/* Several tokens end a text, those of generation_config.json: whichever comes first. ignore_eos draws none of them. */
static void several_ends(void **state) {
    (void)state;
    const char *path = in_folder("model/generation_config.json");
    mhla_model *usual = model;
    int32_t wanted[N];
    by_hand(wanted, N, &hot);
    int k = 3;
    for (int i = 0; i < k; i++)
        if (wanted[i] == wanted[k]) i = -1, k++;
    for (int turn = 0; turn < 3; turn++) { /* the token first, last, and one that does not come before it */
        char text[128];
        result r;
        mhla_sampling own = hot;
        own.bias = &(mhla_bias){0, -INFINITY}; /* as by hand */
        own.biases = 1;
        mhla_generation_desc desc = {.size = sizeof desc, .sampling = &own, .max_tokens = N, .ignore_eos = turn == 2};
        snprintf(text, sizeof text, turn ? "{\"eos_token_id\": [319, 318, %d]}" : "{\"eos_token_id\": [%d, 319]}",
                 (int)wanted[k]);
        write_file(path, text, strlen(text));
        ASSERT_OK(mhla_model_open(&model, in_folder("model")));
        mhla_model_set_context(model, context);
        mhla_sequence *s = new_sequence(0);
        run(&r, s, prompt, PROMPT, &desc);
        assert_int_equal(r.finish, turn == 2 ? MHLA_FINISH_LENGTH : MHLA_FINISH_EOS);
        assert_int_equal(r.count, turn == 2 ? N : k + 1);
        for (int i = 0; i < r.count && turn == 2; i++)
            assert_true(r.ids[i] != 319 && r.ids[i] != 318 && r.ids[i] != wanted[k]);
        if (turn < 2) decoded(&r, wanted, k);
        mhla_sequence_free(s);
        mhla_model_free(model);
        model = usual;
    }
    unlink(path);
}

/* A sequence that is full ends its own generation; the one beside it goes on; a prompt that does not fit is an error. */
static void full(void **state) {
    (void)state;
    mhla_sequence *small = new_sequence(PROMPT + 5), *large = new_sequence(0), *tiny = new_sequence(3);
    mhla_generation *g[2], *none;
    result r[2] = {{{0}, 0, {0}, 0, MHLA_FINISH_NONE, {0}}};
    const mhla_generation_desc desc = {.size = sizeof desc, .sampling = &hot, .max_tokens = N, .ignore_eos = 1};
    ASSERT_OK(mhla_generation_create(&g[0], small, prompt, PROMPT, &desc));
    ASSERT_OK(mhla_generation_create(&g[1], large, prompt, PROMPT, &desc));
    int32_t wanted[N];
    by_hand(wanted, N, &hot);
    for (int i = 0; i < 2 * N && mhla_generation_finish(g[1]) == MHLA_FINISH_NONE; i++) {
        ASSERT_OK(mhla_generation_step(model, g, 2));
        for (int k = 0; k < 2; k++)
            if (r[k].finish == MHLA_FINISH_NONE) take(&r[k], g[k]);
    }
    assert_int_equal(r[0].finish, MHLA_FINISH_LENGTH);
    assert_int_equal(r[0].count, 6);
    decoded(&r[0], wanted, 6);
    assert_int_equal(r[1].count, N);
    decoded(&r[1], wanted, N);
    ASSERT_OK(mhla_generation_create(&none, tiny, prompt, PROMPT, &desc));
    ASSERT_FAILS(mhla_generation_step(model, &none, 1), MHLA_ERANGE, "3");
    mhla_generation_free(none);
    mhla_generation_free(g[0]);
    mhla_generation_free(g[1]);
    mhla_sequence_free(small);
    mhla_sequence_free(large);
    mhla_sequence_free(tiny);
}

static void logprobs(void **state) {
    (void)state;
    mhla_sequence *s = new_sequence(0);
    mhla_generation *g;
    mhla_generation_desc desc = {.size = sizeof desc, .max_tokens = 4, .logprobs = 5, .ignore_eos = 1}; /* greedy */
    ASSERT_OK(mhla_generation_create(&g, s, prompt, PROMPT, &desc));
    while (mhla_generation_finish(g) == MHLA_FINISH_NONE) {
        mhla_piece p = {.size = sizeof p};
        ASSERT_OK(mhla_generation_step(model, &g, 1));
        mhla_generation_piece(g, &p);
        assert_int_equal(p.tops, 5);
        assert_int_equal(p.top[0].id, p.id);
        assert_true(p.top[0].probability == p.logprob);
        for (int i = 1; i < 5; i++) assert_true(p.top[i].probability <= p.top[i - 1].probability);
        int32_t target = p.id; /* the engine's own number for it */
        float own;
        mhla_sequence *copy;
        ASSERT_OK(mhla_sequence_fork(&copy, s));
        const int64_t n = mhla_sequence_tokens(copy);
        const int32_t last = mhla_sequence_ids(copy)[n - 1];
        ASSERT_OK(mhla_sequence_rollback(copy, n - 1));
        const mhla_feed feed = {
            .size = sizeof feed, .sequence = copy, .ids = &last, .count = 1, .targets = &target, .logprobs = &own};
        ASSERT_OK(mhla_lm_feed(model, &feed, 1));
        assert_true(fabsf(own - p.logprob) < 1e-5F);
        mhla_sequence_free(copy);
    }
    mhla_generation_free(g);
    mhla_sequence_free(s);
}

/* One that can draw nothing says so in each step, and the others go on beside it. */
static void one_fails(void **state) {
    (void)state;
    mhla_sequence *s[3];
    mhla_generation *g[3];
    int32_t want[6];
    mhla_bias *never = malloc(sizeof *never * (size_t)vocabulary);
    assert_non_null(never);
    for (int i = 0; i < vocabulary; i++) never[i] = (mhla_bias){i, -INFINITY};
    for (int i = 0; i < 3; i++) {
        const mhla_sampling own = {.size = sizeof own, .bias = never, .biases = i == 1 ? vocabulary : 0};
        const mhla_generation_desc desc = {.size = sizeof desc, .ignore_eos = 1, .sampling = &own};
        s[i] = new_sequence(i == 2 ? PROMPT + 5 : 0);
        ASSERT_OK(mhla_generation_create(&g[i], s[i], prompt, PROMPT, &desc));
    }
    free(never);
    for (int i = 0; i < 6; i++) {
        mhla_piece p = {.size = sizeof p};
        ASSERT_OK(mhla_generation_step(model, &g[2], 1));
        mhla_generation_piece(g[2], &p);
        want[i] = p.id;
    }
    for (int i = 0; i < 6; i++) { /* the third ends beside them, its sequence being full */
        mhla_piece p = {.size = sizeof p};
        ASSERT_FAILS(mhla_generation_step(model, g, 3), MHLA_EDATA, "no token is possible");
        mhla_generation_piece(g[0], &p);
        assert_int_equal(p.id, want[i]);
        mhla_generation_piece(g[1], &p);
        assert_int_equal(p.id, -1);
        assert_int_equal(p.finish, MHLA_FINISH_NONE);
    }
    for (int i = 0; i < 3; i++) {
        mhla_generation_free(g[i]);
        mhla_sequence_free(s[i]);
    }
}

static void refusals(void **state) {
    (void)state;
    mhla_sequence *s = new_sequence(0);
    mhla_generation *g = NULL;
    const int32_t wrong[] = {1, -1}, outside = vocabulary;
    const char *stops[] = {"", "\xff", NULL};
    mhla_generation_desc desc = {.size = sizeof desc};
    ASSERT_FAILS(mhla_generation_create(&g, s, NULL, 0, &desc), MHLA_EINVAL, "neither a prompt");
    ASSERT_FAILS(mhla_generation_create(&g, s, wrong, 2, &desc), MHLA_EINVAL, "token 1 of the prompt is -1");
    ASSERT_FAILS(mhla_generation_create(&g, NULL, prompt, PROMPT, &desc), MHLA_EINVAL, "sequence");
    desc.stop = stops;
    desc.stops = 1;
    ASSERT_FAILS(mhla_generation_create(&g, s, prompt, PROMPT, &desc), MHLA_EINVAL, "stop string 0 is empty");
    desc.stop = stops + 1;
    ASSERT_FAILS(mhla_generation_create(&g, s, prompt, PROMPT, &desc), MHLA_EINVAL, "not UTF-8");
    desc.stops = 0;
    desc.stop_ids = &outside;
    desc.stop_id_count = 1;
    ASSERT_FAILS(mhla_generation_create(&g, s, prompt, PROMPT, &desc), MHLA_EINVAL, "stop token 0");
    desc.stop_id_count = 0;
    desc.sampling = &(mhla_sampling){.size = sizeof(mhla_sampling), .top_k = -5};
    ASSERT_FAILS(mhla_generation_create(&g, s, prompt, PROMPT, &desc), MHLA_EINVAL, "top_k");
    assert_null(g);
    ASSERT_FAILS(mhla_generation_step(model, &g, 1), MHLA_EINVAL, "generation 0 is NULL");
    mhla_generation_free(NULL);
    mhla_chars text = {0};
    const mhla_message_desc hello = {"user", "Hello"};
    ASSERT_FAILS(mhla_chat_render(tokenizer, &text, &hello, 1, 1), MHLA_ENOTSUP, "no chat template");
    mhla_sequence_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),        cmocka_unit_test(resumed),   cmocka_unit_test(together),
        cmocka_unit_test(stop_strings), cmocka_unit_test(matching),  cmocka_unit_test(ends),
        cmocka_unit_test(full),         cmocka_unit_test(logprobs),  cmocka_unit_test(refusals),
        cmocka_unit_test(several_ends), cmocka_unit_test(one_fails),
    };
    return cmocka_run_group_tests(tests, make_model, drop_model);
}
