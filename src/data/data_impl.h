/* A set that `mhla data` fetches, inside: one file per source of sets, one row each in data.c. */
#ifndef MHLA_DATA_DATA_IMPL_H
#define MHLA_DATA_DATA_IMPL_H

#include <mhla/nn.h>
#include <stddef.h>

/* A file of the folder, as it must be. */
typedef struct mhla_data_part {
    const char *name;
    size_t bytes;
    const char *sha256;
} mhla_data_part;

typedef struct mhla_data_set {
    mhla_data_info info;
    mhla_data_part parts[5]; /* ends with a row without a name */
    const char *classes;     /* of pictures; or NULL */
    const char *readme;
    /* Writes the parts into `folder`, which is empty and not yet under its name. */
    mhla_status (*make)(const struct mhla_data_set *set, const char *source, const char *folder);
    /* What is to be checked besides the parts, after them; or NULL. */
    mhla_status (*check)(const char *folder);
} mhla_data_set;

extern const mhla_data_set mhla_data_fashion_mnist, mhla_data_cifar10_test, mhla_data_text, mhla_data_smollm2,
    mhla_data_emoji, mhla_data_inception, mhla_data_gemma3, mhla_data_moving_fashion, mhla_data_moving_emoji;

mhla_status mhla_data_check_bytes(const mhla_data_part *part, const void *bytes, size_t size, const char *path);
mhla_status mhla_data_write(const char *folder, const char *name, const void *bytes, size_t size);
/* Checked, then written under the part's name. */
mhla_status mhla_data_write_part(const mhla_data_part *part, const char *folder, const void *bytes, size_t size);
mhla_status mhla_data_join(char path[4096], const char *folder, const char *name);

/* CIFAR-10's test pictures, task.json, out of the archive, which is read only as far as that goes. *bytes: free() it. */
mhla_status mhla_cifar_member(unsigned char **bytes, const char *archive);

/* ---- Emoji: the layout without the sums that are known of the published files ---- */

#define MHLA_EMOJI_LIST "pictures.txt"

typedef struct mhla_emoji_source {
    const void *font; /* emoji_font.h */
    size_t font_size;
    const char *font_name; /* for messages, as list_name */
    const char *list;      /* Unicode's emoji-test.txt */
    size_t list_size;
    const char *list_name;
} mhla_emoji_source;

typedef struct mhla_emoji_counts {
    int listed;  /* fully qualified emoji of the list */
    int missing; /* of them, those without a bitmap */
    int twins;   /* those whose bitmap is another one's */
    int train, test;
} mhla_emoji_counts;

/* Writes train/, test/ and the list of pictures into `folder`, which is empty. */
mhla_status mhla_emoji_lay_out(mhla_emoji_counts *counts, const char *folder, const mhla_emoji_source *source);
/* Every picture of the list is there and has its pixels. */
mhla_status mhla_emoji_check(const char *folder);

#endif
