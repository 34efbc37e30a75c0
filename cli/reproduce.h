/* The experiments of mhla reproduce: a row each in cmd_reproduce.c, a file each. */
#ifndef MHLA_CLI_REPRODUCE_H
#define MHLA_CLI_REPRODUCE_H

int reproduce_mqar(int argc, char **argv);

#endif
