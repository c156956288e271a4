/* HMAC-SHA256 (RFC 2104) by OpenSSL, and random nonces: all the cryptography that the connections
 * need. */
#ifndef ADLI_COMM_AUTH_H
#define ADLI_COMM_AUTH_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ADLI_KEY_BYTES = 32 };

typedef struct adli_part {
    const void *data;
    size_t length;
} adli_part;

/* A key that is ready for use. One thread at a time. */
typedef struct adli_mac adli_mac;

ADL_MUST adl_status adli_mac_new(const void *key, size_t length, adli_mac **out);
void adli_mac_free(adli_mac *mac);
/* The MAC of the concatenated parts. */
ADL_MUST adl_status adli_mac_of(adli_mac *mac, const adli_part *parts, size_t count,
                                uint8_t out[ADLI_KEY_BYTES]);
/* In constant time. */
bool adli_mac_equal(const uint8_t a[ADLI_KEY_BYTES], const uint8_t b[ADLI_KEY_BYTES]);

ADL_MUST adl_status adli_random(void *out, size_t length);
/* Overwrites a secret in a way that the compiler keeps. */
void adli_wipe(void *data, size_t length);

#endif
