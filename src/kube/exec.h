/* A program in a container, through the API server's exec: its streams are channels of a WebSocket. */
#ifndef ADLI_KUBE_EXEC_H
#define ADLI_KUBE_EXEC_H

#include "base/buf.h"
#include "kube/config.h"

#include <stdbool.h>

typedef struct adli_kube_exec adli_kube_exec;

enum { ADLI_EXEC_IN, ADLI_EXEC_OUT, ADLI_EXEC_ERR, ADLI_EXEC_RESULT, ADLI_EXEC_SIZE };

/* "/api/v1/namespaces/NS/pods/POD/exec?..." for the words of a command; streams beside its output as wanted. */
void adli_kube_exec_path(adli_buf *out, const char *ns, const char *pod, const char *container,
                         const char *const *words, bool in, bool tty);

/* Connects and begins; blocks for at most limit_s. ENOENT 404; EINVAL, EIO: in the server's words. The config's token
 * or certificate is used as it is (adli_kube_config_login). */
ADL_MUST adl_status adli_kube_exec_open(const adli_kube_config *config, const char *path,
                                        double limit_s, adli_kube_exec **out);
void adli_kube_exec_close(adli_kube_exec *exec);

/* Waits for the next piece of output, at most timeout_ms; *channel -1: there was none, or extra_fd (or -1) has
 * something to read. *over: the program has ended, see adli_kube_exec_result. The data is valid until the next call.
 * ENET: the connection broke. */
ADL_MUST adl_status adli_kube_exec_next(adli_kube_exec *exec, int timeout_ms, int extra_fd,
                                        int *channel, const char **data, size_t *length,
                                        bool *over);
/* Sends to a channel: the program's input, or the terminal's size. */
ADL_MUST adl_status adli_kube_exec_send(adli_kube_exec *exec, int channel, const char *data,
                                        size_t length);
/* The program's input ends. Servers before 1.30 do not know how. */
ADL_MUST adl_status adli_kube_exec_end_input(adli_kube_exec *exec);
/* Once over: 0, the program's exit status, or a failure in the server's words. */
ADL_MUST adl_status adli_kube_exec_result(const adli_kube_exec *exec, int *exit_status);

#endif
