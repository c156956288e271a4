#ifndef ADAPTDL_CMD_MODEL_PLOT_H
#define ADAPTDL_CMD_MODEL_PLOT_H

/* `adaptdl model plot`; argv[0] is "plot". */
int cmd_model_plot(int argc, char **argv);

#endif
