/* Who runs the tasks: OpenMP, threads of our own, or the caller's parallel for. */
#ifndef MHLA_CORE_PARALLEL_H
#define MHLA_CORE_PARALLEL_H

#include <mhla/mhla.h>

/* Runs task(arg, i, worker) for each i in 0..n-1 and returns when all are done. worker < mhla_context_threads(). */
void mhla_parallel(const mhla_context *context, int64_t n, mhla_task_fn task, void *arg);

/* The same where reading memory, which lies in the order of the tasks, is the work: each worker begins with a stretch of its own,
 * and helps others when it is through. Two cores read a third more that way than by taking the next 64 KiB in turn. */
void mhla_parallel_stretches(const mhla_context *context, int64_t n, mhla_task_fn task, void *arg);

/* CPUs that this process may run on. */
int mhla_cpu_count(void);

/* Bytes of a core's own second cache; 0 if nobody knows. Found when the library is loaded. */
extern int64_t mhla_l2_bytes;

#endif
