/* What cppcheck, which reads no system headers, must know of <sys/queue.h>: tools/check includes it
 * everywhere. */
#define TAILQ_FOREACH(v, h, f) for ((v) = (h)->tqh_first; (v); (v) = (v)->f.tqe_next)
#define TAILQ_FOREACH_REVERSE(v, h, n, f)                                                          \
    for ((v) = *(((struct n *)(h)->tqh_last)->tqh_last); (v);                                      \
         (v) = *(((struct n *)(v)->f.tqe_prev)->tqh_last))
