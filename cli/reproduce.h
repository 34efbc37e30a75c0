/* reproduce.h - the parts of `mhla reproduce`. */
#ifndef MHLA_CLI_REPRODUCE_H
#define MHLA_CLI_REPRODUCE_H

int reproduce_mqar(int argc, char **argv);
/* An experiment of lab.h by its name. */
int reproduce_lab(const char *name, int argc, char **argv);

#endif
