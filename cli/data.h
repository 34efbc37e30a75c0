/* What cmd_data.c hands to its parts. */
#ifndef MHLA_CLI_DATA_H
#define MHLA_CLI_DATA_H

#include "cli.h"

/* `mhla data show`: what follows these two words. */
int data_show(int argc, char **argv);

#endif
