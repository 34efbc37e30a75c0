/* training.c: a loop of one's own on data of one's own: a small vision transformer with MHLA learns to tell in which of four
 * directions the stripes of a noisy picture run. The loop is main; pictures could come from anywhere.
 *
 *   cc training.c -o training $(pkg-config --cflags --libs mhla-nn) -lm */
#include <math.h>
#include <mhla/nn.h>
#include <stdio.h>

enum { SIDE = 16, PIXELS = SIDE * SIDE, CLASSES = 4, BATCH = 32, STEPS = 60 };

static float noise(void) { /* -1 .. 1 */
    static uint32_t x = 1;
    x = 1664525u * x + 1013904223u;
    return (float)(x >> 8) / 8388608.0f - 1.0f;
}

/* images [BATCH,1,SIDE,SIDE], labels [BATCH] */
static void draw(float *images, int32_t *labels) {
    for (int n = 0; n < BATCH; n++) {
        const float angle = (float)(labels[n] = n % CLASSES) * 0.785f, phase = 3.14f * noise();
        for (int i = 0; i < PIXELS; i++)
            images[n * PIXELS + i] =
                sinf((float)(i % SIDE) * cosf(angle) + (float)(i / SIDE) * sinf(angle) + phase) + noise();
    }
}

int main(void) {
    static float images[BATCH * PIXELS], logits[BATCH * CLASSES];
    static int32_t labels[BATCH];
    const char *settings[] = {"attention=mhla", "image=16,16", "channels=1", "padding=0,0", "patch=2",
                              "blocks=2,2",     "dim=32",      "depth=2",    "heads=2",     "classes=4"};
    mhla_model *model;
    if (mhla_model_create(&model, "deit_nano", settings, sizeof settings / sizeof *settings, 0)) goto failed;
    for (int step = 0; step < STEPS; step++) {
        const double rate = 3e-3 * (1.0 - (double)step / STEPS);
        float loss;
        draw(images, labels);
        if (mhla_model_step(model, &loss, images, labels, BATCH, rate)) goto failed;
        if (step % 10 == 9) printf("step %2d  loss %.3f\n", step + 1, loss);
    }
    draw(images, labels); /* pictures that it has not seen */
    if (mhla_model_forward(model, logits, images, BATCH)) goto failed;
    int right = 0;
    for (int n = 0; n < BATCH; n++) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            if (logits[n * CLASSES + c] > logits[n * CLASSES + best]) best = c;
        right += best == labels[n];
    }
    printf("%d of %d new images right\n", right, BATCH);
    mhla_model_free(model); /* mhla_model_save(model, "stripes") would have kept it for `mhla classify` */
    return right < BATCH * 3 / 4;
failed:
    fprintf(stderr, "training: %s\n", mhla_message());
    return 1;
}
