/* Fuzzes mhla_state_load: whatever the bytes are, it loads them or refuses them, and a loaded state can be fed, saved
 * and freed. The first byte chooses the plan and whether size, fingerprints and checksum are put right, so that the
 * fuzzer gets past them. */
#include <mhla/mhla.h>
#include <stdlib.h>
#include <string.h>

#include "ops/causal/state.h"

static mhla_plan *plans[3];
static const float mix[] = {1.0f, 0.0f, 0.0f, 0.5f, 0.5f, 0.0f, 0.25f, 0.25f, 0.5f};
static const float x[64];

static void make_plans(void) {
    const mhla_plan_desc d = {.size = sizeof d,
                              .kind = MHLA_KIND_CAUSAL,
                              .heads = 2,
                              .kv_heads = 1,
                              .key_dim = 3,
                              .value_dim = 2,
                              .denominator = MHLA_DEN_EQ4,
                              .den_eps = 1.0f,
                              .chunk = 4,
                              .chunks = 3};
    mhla_plan_desc clamp = d, linear = d;
    clamp.beyond = MHLA_BEYOND_CLAMP;
    linear.kind = MHLA_KIND_LINEAR_CAUSAL;
    linear.chunks = 0;
    linear.denominator = MHLA_DEN_NONE;
    if (mhla_plan_create(&plans[0], &d) || mhla_plan_create(&plans[1], &clamp) || mhla_plan_create(&plans[2], &linear))
        abort();
}

/* The fields that no random byte finds: those of a fresh state, and the sum over all. */
static void put_right(unsigned char *bytes, size_t size, const mhla_plan *plan, const float *m) {
    mhla_state *s;
    if (size < 72 || mhla_state_create(&s, plan, m)) return;
    unsigned char fresh[4096];
    if (mhla_state_save(s, fresh, sizeof fresh)) abort();
    mhla_state_free(s);
    memcpy(bytes, fresh, 32);
    for (int i = 0; i < 8; i++) bytes[56 + i] = (unsigned char)((uint64_t)size >> (8 * i));
    const uint64_t sum = mhla_state_checksum(bytes, size - 8);
    for (int i = 0; i < 8; i++) bytes[size - 8 + i] = (unsigned char)(sum >> (8 * i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (plans[0] == NULL) make_plans();
    if (size < 1) return 0;
    const int which = data[0] % 3;
    const float *m = which == 2 ? NULL : mix;
    unsigned char *bytes = malloc(size);
    if (bytes == NULL) return 0;
    memcpy(bytes, data + 1, size - 1);
    if (data[0] & 0x80) put_right(bytes, size - 1, plans[which], m);
    mhla_state *s;
    if (mhla_state_load(&s, bytes, size - 1, plans[which], m) == MHLA_OK) {
        float o[8];
        const mhla_call c = {.size = sizeof c, .batch = 1, .tokens = 1};
        const mhla_status status = mhla_step(plans[which], &c, &s, 1, o, x, x, x, m);
        if (status != MHLA_OK && status != MHLA_ERANGE) abort();
        mhla_state_free(s);
    }
    free(bytes);
    return 0;
}
