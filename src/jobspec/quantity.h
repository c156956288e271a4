/* Kubernetes quantities ("500m", "1.5Gi", "2e3"), exactly: decimal arithmetic, no floating point.
 * What does not fit the unit is rounded up, as Kubernetes does; what does not fit 64 bits is
 * refused.
 *
 *   quantity = [sign] digits [. digits] suffix     digits on one side of the point suffice
 *   suffix   = n u m "" k M G T P E | Ki Mi Gi Ti Pi Ei | (e|E)[sign]digits */
#ifndef ADLI_QUANTITY_H
#define ADLI_QUANTITY_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* text x 10^scale (scale 3: thousandths), rounded up; *exact (may be NULL) tells whether that
 * changed it. EINVAL: not a quantity, negative or too large; the message quotes it. */
ADL_MUST adl_status adli_quantity_parse(const char *text, int scale, int64_t *out, bool *exact);

/* The amount of a resource in its unit: "cpu" in thousandths, "memory" and other sizes in bytes,
 * anything else in whole pieces (a fraction is refused, as in Kubernetes). At most ADL_MAX_AMOUNT.
 */
ADL_MUST adl_status adli_resource_parse(const char *name, const char *text, int64_t *out);
/* The shortest quantity that reads back as amount >= 0: cpu 1500 "1500m", 2000 "2"; memory
 * 8589934592 "8Gi". Returns out; 32 bytes are enough. */
const char *adli_resource_print(const char *name, int64_t amount, char *out, size_t size);

/* May a container ask for a resource of this name: "cpu", "memory", "ephemeral-storage",
 * "hugepages-...", or one with a domain ("nvidia.com/gpu")? *suggestion (may be NULL): the nearest
 * standard one, or NULL. */
bool adli_resource_name_valid(const char *name, const char **suggestion);

#endif
