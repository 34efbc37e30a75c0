/* Who runs the tasks: OpenMP, threads of our own, or the caller's parallel for. */
#ifndef MHLA_CORE_PARALLEL_H
#define MHLA_CORE_PARALLEL_H

#include <mhla/mhla.h>

/* Runs task(arg, i, worker) for each i in 0..n-1 and returns when all are done. worker < mhla_context_threads(). */
void mhla_parallel(const mhla_context *context, int64_t n, mhla_task_fn task, void *arg);

/* CPUs that this process may run on. */
int mhla_cpu_count(void);

#endif
