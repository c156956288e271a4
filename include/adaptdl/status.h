/* Result codes and error text. Every function that can fail returns an adl_status and, on failure,
 * leaves one line in adl_error() that says what was wrong and with which thing. */
#ifndef ADAPTDL_STATUS_H
#define ADAPTDL_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define ADL_API  __attribute__((visibility("default")))
#define ADL_MUST __attribute__((warn_unused_result))

typedef enum adl_status {
    ADL_OK = 0,
    ADL_EINVAL = -1,   /* an argument or an input file is wrong */
    ADL_ENOMEM = -2,   /* no memory, or a buffer would pass its limit */
    ADL_EIO = -3,      /* the operating system refused a file operation */
    ADL_ENOENT = -4,   /* a thing that was named does not exist */
    ADL_ESTATE = -5,   /* not now: the call does not fit the object's state */
    ADL_ENET = -6,     /* a network operation failed */
    ADL_ETIMEOUT = -7, /* it took too long */
    ADL_EPEER = -8,    /* another replica died or misbehaved */
    ADL_ECORRUPT = -9, /* stored data fails its checksum or format */
    ADL_EINTR = -10,   /* asked to stop (SIGTERM, SIGINT) */
} adl_status;

/* The calling thread's last failure, one line without a newline; "" when there was none. The text
 * is owned by the library and valid until the thread's next failing call. */
ADL_API const char *adl_error(void);

/* "ok", "invalid input", ...: a constant string for any value. */
ADL_API const char *adl_status_text(adl_status status);

/* The library's version, "major.minor.patch". */
ADL_API const char *adl_version(void);

#ifdef __cplusplus
}
#endif
#endif
