/* A small run of training on text that tests share: shards of a made-up language in a temporary folder. */
#ifndef MHLA_TESTS_NN_TEXT_CASE_H
#define MHLA_TESTS_NN_TEXT_CASE_H

#include "data/shard.h"
#include "train_case.h"

enum { TEXT_VOCABULARY = 40, TEXT_BOS = 0, TEXT_EOS = 1 };

/* Every document counts in steps of its own: the third token follows from the first two. */
static inline void write_text(const char *path, int documents, uint64_t seed) {
    rng r = {seed};
    mhla_shard_writer *w;
    const mhla_shard_head head = {.vocabulary = TEXT_VOCABULARY, .bos = TEXT_BOS, .eos = TEXT_EOS};
    ASSERT_OK(mhla_shard_writer_open(&w, path, &head));
    for (int d = 0; d < documents; d++) {
        int32_t ids[64];
        const int n = 8 + rng_below(&r, 50), step = 1 + rng_below(&r, 5), first = rng_below(&r, 38);
        for (int i = 0; i < n; i++) ids[i] = 2 + (first + step * i) % 38;
        ASSERT_OK(mhla_shard_writer_add(w, ids, n, (size_t)(2 * n)));
    }
    ASSERT_OK(mhla_shard_writer_commit(w, NULL));
}

static inline void make_text(void) {
    assert_int_equal(mkdir(in_root("text"), 0777), 0);
    write_text(in_root("text/train.shard"), 120, 1);
    write_text(in_root("text/validation.shard"), 16, 2);
}

static inline int set_up_text(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/mhla_train_XXXXXX");
    assert_non_null(mkdtemp(root));
    make_text();
    return 0;
}

static inline mhla_status create_text(mhla_trainer **t, const char *run, ...) {
    char source[300];
    snprintf(source, sizeof source, "data.source=%s", in_root("text"));
    const char *list[48] = {"task=text",
                            source,
                            "model.model=lm_micro",
                            "model.hidden_size=32",
                            "model.intermediate_size=48",
                            "train.context=48",
                            "train.batch=4",
                            "train.steps=24",
                            "train.rate=0.003",
                            "train.ema=0.9",
                            "train.clip=1",
                            "train.warmup_steps=4",
                            "train.beta2=0.95",
                            "eval.steps=8",
                            "log.steps=1"};
    int n = 15;
    va_list more;
    va_start(more, run);
    for (const char *s; (s = va_arg(more, const char *)) != NULL && n < 48;) list[n++] = s;
    va_end(more);
    return mhla_trainer_create(t, in_root(run), NULL, list, n);
}

#endif
