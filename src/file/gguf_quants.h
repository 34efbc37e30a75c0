/* Quantised blocks of GGUF files to float32, exactly as the format defines them (gguf_quants.c). */
#ifndef MHLA_FILE_GGUF_QUANTS_H
#define MHLA_FILE_GGUF_QUANTS_H

/* One block, at any alignment, to the 32 or 256 numbers that it holds. */
typedef void (*mhla_gguf_widen)(float *to, const unsigned char *block);

void mhla_gguf_widen_q4_0(float *to, const unsigned char *block);
void mhla_gguf_widen_q4_1(float *to, const unsigned char *block);
void mhla_gguf_widen_q5_0(float *to, const unsigned char *block);
void mhla_gguf_widen_q5_1(float *to, const unsigned char *block);
void mhla_gguf_widen_q8_0(float *to, const unsigned char *block);
void mhla_gguf_widen_q2_k(float *to, const unsigned char *block);
void mhla_gguf_widen_q3_k(float *to, const unsigned char *block);
void mhla_gguf_widen_q4_k(float *to, const unsigned char *block);
void mhla_gguf_widen_q5_k(float *to, const unsigned char *block);
void mhla_gguf_widen_q6_k(float *to, const unsigned char *block);

#endif
