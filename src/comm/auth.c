#include "comm/auth.h"

#include "base/mem.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct adli_mac {
    EVP_MAC_CTX *context;
};

static adl_status fail_openssl(const char *what)
{
    return adli_fail(ADL_ENOMEM, "OpenSSL: HMAC-SHA256: %s failed", what);
}

adl_status adli_mac_new(const void *key, size_t length, adli_mac **out)
{
    *out = NULL;
    adli_mac *mac = adli_calloc(1, sizeof *mac);
    if (!mac)
        return adli_fail_memory("an authentication key");
    EVP_MAC *algorithm = EVP_MAC_fetch(NULL, "HMAC", NULL);
    mac->context = algorithm ? EVP_MAC_CTX_new(algorithm) : NULL;
    EVP_MAC_free(algorithm); /* the context holds its own reference */
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end(),
    };
    if (!mac->context || !EVP_MAC_init(mac->context, key, length, params)) {
        adli_mac_free(mac);
        return fail_openssl("setting up a key");
    }
    *out = mac;
    return ADL_OK;
}

void adli_mac_free(adli_mac *mac)
{
    if (!mac)
        return;
    EVP_MAC_CTX_free(mac->context);
    free(mac);
}

adl_status adli_mac_of(adli_mac *mac, const adli_part *parts, size_t count,
                       uint8_t out[ADLI_KEY_BYTES])
{
    size_t length = 0;
    bool fine = EVP_MAC_init(mac->context, NULL, 0, NULL);
    for (size_t i = 0; fine && i < count; i++)
        fine = !parts[i].length || EVP_MAC_update(mac->context, parts[i].data, parts[i].length);
    if (!fine || !EVP_MAC_final(mac->context, out, &length, ADLI_KEY_BYTES) ||
        length != ADLI_KEY_BYTES)
        return fail_openssl("computing");
    return ADL_OK;
}

bool adli_mac_equal(const uint8_t a[ADLI_KEY_BYTES], const uint8_t b[ADLI_KEY_BYTES])
{
    return CRYPTO_memcmp(a, b, ADLI_KEY_BYTES) == 0;
}

adl_status adli_random(void *out, size_t length)
{
    uint8_t *at = out;
    while (length > 0) {
        ssize_t got = getrandom(at, length, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return adli_fail(ADL_EIO, "getrandom: %s", strerror(errno));
        at += got;
        length -= (size_t)got;
    }
    return ADL_OK;
}

void adli_wipe(void *data, size_t length)
{
    OPENSSL_cleanse(data, length);
}
