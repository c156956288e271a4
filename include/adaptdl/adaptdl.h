/* The whole public API. Models first, then scheduling, then training: from what computes to what runs. */
#ifndef ADAPTDL_H
#define ADAPTDL_H

#include "adaptdl/fit.h"
#include "adaptdl/goodput.h"
#include "adaptdl/noise.h"
#include "adaptdl/scaling.h"
#include "adaptdl/shape.h"
#include "adaptdl/speedup.h"
#include "adaptdl/status.h"

#include "adaptdl/cluster.h"
#include "adaptdl/policy.h"
#include "adaptdl/sizing.h"
#include "adaptdl/snapshot.h"

#include "adaptdl/allreduce.h"
#include "adaptdl/checkpoint.h"
#include "adaptdl/dataset.h"
#include "adaptdl/group.h"
#include "adaptdl/runner.h"
#include "adaptdl/tensorboard.h"
#include "adaptdl/train.h"

#endif
