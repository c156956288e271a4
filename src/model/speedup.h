/* Models that several jobs have in common. */
#ifndef ADLI_MODEL_SPEEDUP_H
#define ADLI_MODEL_SPEEDUP_H

#include "adaptdl/speedup.h"

/* One more holder, who frees it as well. One thread. */
adl_speedup *adli_speedup_share(adl_speedup *speedup);

#endif
