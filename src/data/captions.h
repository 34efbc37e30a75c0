/* Captions of pictures. What an encoder made of them is text/caption_rows.h.
 *
 * Captions lie beside the pictures:
 *
 *   metadata.jsonl   a line for each picture, {"file_name": "cat/1.png", "text": "a cat"}, as Hugging Face's imagefolder has it: in the
 *                    folder of the data, or in train/, test/ or another folder in it; file_name is relative to where it lies
 *   pictures.txt     what `mhla data emoji` writes: the names of the emoji
 */
#ifndef MHLA_DATA_CAPTIONS_H
#define MHLA_DATA_CAPTIONS_H

#include "data/dataset.h"
#include "text/caption_rows.h"

/* Files, relative to the folder of the data ("" for texts of their own), and what is said of them. */
typedef struct mhla_caption_list {
    char **files, **texts; /* [count] */
    int64_t count, room;
} mhla_caption_list;

/* Appends the captions of all pictures of `data`, which lies in `folder`. MHLA_EDATA names the first picture without one. */
mhla_status mhla_captions_of(mhla_caption_list *list, const mhla_dataset *data, const char *folder);
/* Appends the lines of a text file; empty ones are left out. */
mhla_status mhla_captions_of_lines(mhla_caption_list *list, const char *path);
void mhla_caption_list_free(mhla_caption_list *list);

/* MHLA_EDATA names the first text that is another than in `list`; `folder` is that of the rows. */
mhla_status mhla_captions_check(const mhla_captions *captions, const mhla_caption_list *list, const char *folder);

#endif
