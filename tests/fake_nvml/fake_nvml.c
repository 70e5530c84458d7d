/* A stand-in for NVIDIA's libnvidia-ml.so.1, for the calls this project makes.
 *
 * Its GPUs live in the file that $FAKE_NVML_STATE names, laid out as `struct state`; driver.py maps
 * the same file and has the same layout. Every call takes the file's lock and reads it anew, so that
 * tests, their threads and their child processes all see one driver.
 *
 * A GPU draws   idle + load * (min(limit, demand) - idle)   watts, which it nears exponentially, with
 * the time constant `lag_s`, from what it drew at the last change (`from_w`). Its energy is the
 * integral of that: what had been spent at the last change (`energy_j` at `since_s`), and the power
 * since then. It is exact at any moment and needs no thread.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_GPU_IS_LOST = 15,
    NVML_VERSION_MISMATCH = 18,
};

/* Which error a call returns can be set for each kind of call; driver.py has the same order. */
enum kind { FIND, INFO, ENERGY, POWER, CONSTRAINTS, LIMIT, DEFAULT_LIMIT, ENFORCED, SET_LIMIT, USE, KINDS };

#define MAX_GPUS 16

struct gpu {
    char name[96];
    char uuid[80];
    uint32_t min_mw, max_mw, default_mw, limit_mw;
    int32_t major, minor;  /* CUDA compute capability */
    int32_t errors[KINDS]; /* what a call returns, by kind; 0: it works */
    double idle_w, demand_w, load;
    double energy_j, since_s; /* energy up to the last change of power */
    double from_w, lag_s;     /* power then, and how long it lags behind; 0: not at all */
    double shown_j;           /* what the counter showed then */
    double noise_j;           /* how much too much the counter may show, anew at each refresh */
};

struct state {
    uint32_t size; /* of this struct, to catch a layout that differs */
    uint32_t gpu_count;
    int32_t init_error; /* what nvmlInit returns; 0: it works */
    int32_t gone;       /* the driver was unloaded under way */
    int32_t frozen;     /* the clock stands still but for clock_s */
    double clock_s;     /* added to the clock */
    double refresh_s;   /* how often the energy counter is brought up to date; 0: always */
    char driver_version[80];
    struct gpu gpus[MAX_GPUS];
};

/* A process with $FAKE_NVML_ROOT may do what others lack the permission for. One with
 * $FAKE_NVML_FIRST=n sees the GPUs from the n-th on, counted from 0, as a container does. */
static unsigned first_gpu(void) {
    const char *first = getenv("FAKE_NVML_FIRST");
    return first ? (unsigned)atoi(first) : 0;
}

/* One call on the driver: the state as it was found, and the lock on it. */
struct call {
    int fd;
    double now_s;
    struct state state;
    struct gpu *gpu;
};

static int init_count;
static char handles[MAX_GPUS]; /* a GPU's handle is the address of its element */

/* A file description of its own for each call makes flock work among threads too. */
static int lock_state(struct call *call) {
    const char *path = getenv("FAKE_NVML_STATE");
    call->gpu = NULL;
    call->fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (call->fd < 0) return NVML_DRIVER_NOT_LOADED;
    flock(call->fd, LOCK_EX);
    if (pread(call->fd, &call->state, sizeof call->state, 0) != sizeof call->state ||
        call->state.size != sizeof call->state) {
        flock(call->fd, LOCK_UN);
        close(call->fd);
        return NVML_VERSION_MISMATCH;
    }
    struct timespec now = {0, 0};
    if (!call->state.frozen) clock_gettime(CLOCK_MONOTONIC, &now);
    call->now_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9 + call->state.clock_s;
    return NVML_SUCCESS;
}

static int leave(struct call *call, int result) {
    flock(call->fd, LOCK_UN); /* a forked child may hold the description open */
    close(call->fd);
    return result;
}

static int enter(struct call *call) {
    if (init_count == 0) return NVML_UNINITIALIZED;
    int error = lock_state(call);
    if (!error && call->state.gone) error = leave(call, NVML_UNINITIALIZED);
    return error;
}

static int enter_gpu(struct call *call, void *handle, enum kind kind) {
    int error = enter(call);
    if (error) return error;
    ptrdiff_t index = (char *)handle - handles;
    if (index < 0 || index >= (ptrdiff_t)call->state.gpu_count)
        return leave(call, NVML_INVALID_ARGUMENT);
    call->gpu = &call->state.gpus[index];
    error = call->gpu->errors[kind];
    if (error == NVML_NO_PERMISSION && getenv("FAKE_NVML_ROOT")) error = NVML_SUCCESS;
    return error ? leave(call, error) : NVML_SUCCESS;
}

static double settled_w(const struct gpu *gpu) {
    double cap_w = fmin(gpu->limit_mw / 1e3, gpu->demand_w);
    return gpu->idle_w + gpu->load * fmax(cap_w - gpu->idle_w, 0.0);
}

/* What is left of the power's last change. */
static double rest(const struct gpu *gpu, double at_s) {
    return gpu->lag_s > 0 ? exp(-(at_s - gpu->since_s) / gpu->lag_s) : 0.0;
}

static double power_w(const struct gpu *gpu, double at_s) {
    double to_w = settled_w(gpu);
    return to_w + (gpu->from_w - to_w) * rest(gpu, at_s);
}

static double energy_j(const struct gpu *gpu, double at_s) {
    double to_w = settled_w(gpu), lagging_s = gpu->lag_s * (1.0 - rest(gpu, at_s));
    return gpu->energy_j + to_w * (at_s - gpu->since_s) + (gpu->from_w - to_w) * lagging_s;
}

/* A number in [0, 1) that looks random, the same for the same refresh. */
static double noise_at(double refresh) {
    double value = sin(refresh * 12.9898) * 43758.5453;
    return value - floor(value);
}

/* What the counter shows: the energy at its last refresh, and its error. */
static double shown_j(const struct call *call) {
    double refresh_s = call->state.refresh_s;
    if (refresh_s <= 0) return energy_j(call->gpu, call->now_s);
    double refresh = floor(call->now_s / refresh_s);
    if (refresh * refresh_s <= call->gpu->since_s) return call->gpu->shown_j;
    return energy_j(call->gpu, refresh * refresh_s) + call->gpu->noise_j * noise_at(refresh);
}

/* Book the energy spent so far, before the power changes. */
static void settle(struct call *call) {
    double shown = shown_j(call);
    call->gpu->from_w = power_w(call->gpu, call->now_s);
    call->gpu->energy_j = energy_j(call->gpu, call->now_s);
    call->gpu->since_s = call->now_s;
    call->gpu->shown_j = shown;
}

static int write_string(char *out, unsigned size, const char *value) {
    if (strlen(value) + 1 > size) return NVML_INSUFFICIENT_SIZE;
    strcpy(out, value);
    return NVML_SUCCESS;
}

/* The library. */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    struct call call;
    int error = lock_state(&call);
    if (error) return error;
    error = call.state.init_error;
    if (!error) init_count++;
    return leave(&call, error);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (init_count == 0) return NVML_UNINITIALIZED;
    init_count--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(int result) {
    switch (result) {
        case NVML_SUCCESS: return "Success";
        case NVML_UNINITIALIZED: return "Uninitialized";
        case NVML_INVALID_ARGUMENT: return "Invalid Argument";
        case NVML_NOT_SUPPORTED: return "Not Supported";
        case NVML_NO_PERMISSION: return "Insufficient Permissions";
        case NVML_NOT_FOUND: return "Not Found";
        case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
        case NVML_DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case NVML_GPU_IS_LOST: return "GPU is lost";
        case NVML_VERSION_MISMATCH: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    struct call call;
    int error = enter(&call);
    return error ? error : leave(&call, write_string(out, size, call.state.driver_version));
}

/* Finding GPUs. */

int nvmlDeviceGetCount_v2(unsigned *count) {
    struct call call;
    int error = enter(&call);
    if (error) return error;
    *count = call.state.gpu_count - first_gpu();
    return leave(&call, NVML_SUCCESS);
}

static int find(struct call *call, unsigned index, void **handle) {
    int error = call->state.gpus[index].errors[FIND];
    if (!error) *handle = &handles[index];
    return leave(call, error);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    struct call call;
    int error = enter(&call);
    if (error) return error;
    index += first_gpu();
    if (index >= call.state.gpu_count) return leave(&call, NVML_INVALID_ARGUMENT);
    return find(&call, index, handle);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    struct call call;
    int error = enter(&call);
    if (error) return error;
    for (unsigned index = 0; index < call.state.gpu_count; index++)
        if (strcmp(call.state.gpus[index].uuid, uuid) == 0) return find(&call, index, handle);
    return leave(&call, NVML_NOT_FOUND);
}

/* Queries of a GPU. */

#define STRING_GETTER(function, member)                                      \
    int function(void *handle, char *out, unsigned size) {                   \
        struct call call;                                                    \
        int error = enter_gpu(&call, handle, INFO);                          \
        return error ? error : leave(&call, write_string(out, size, member)); \
    }

#define GETTER(function, kind, type, value)         \
    int function(void *handle, type *out) {         \
        struct call call;                           \
        int error = enter_gpu(&call, handle, kind); \
        if (error) return error;                    \
        *out = (type)(value);                       \
        return leave(&call, NVML_SUCCESS);          \
    }

STRING_GETTER(nvmlDeviceGetName, call.gpu->name)
STRING_GETTER(nvmlDeviceGetUUID, call.gpu->uuid)
GETTER(nvmlDeviceGetIndex, INFO, unsigned, call.gpu - call.state.gpus)
GETTER(nvmlDeviceGetTotalEnergyConsumption, ENERGY, unsigned long long, shown_j(&call) * 1e3)
GETTER(nvmlDeviceGetPowerUsage, POWER, unsigned, power_w(call.gpu, call.now_s) * 1e3 + 0.5)
GETTER(nvmlDeviceGetPowerManagementLimit, LIMIT, unsigned, call.gpu->limit_mw)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, DEFAULT_LIMIT, unsigned, call.gpu->default_mw)
GETTER(nvmlDeviceGetEnforcedPowerLimit, ENFORCED, unsigned, call.gpu->limit_mw)

/* NVML_DEVICE_ARCH_VOLTA, _AMPERE, _HOPPER: 5, 7 and 9 for compute capability 7, 8 and 9. */
GETTER(nvmlDeviceGetArchitecture, INFO, unsigned, 2 * call.gpu->major - 9)

int nvmlDeviceGetPowerManagementLimitConstraints(void *handle, unsigned *min, unsigned *max) {
    struct call call;
    int error = enter_gpu(&call, handle, CONSTRAINTS);
    if (error) return error;
    *min = call.gpu->min_mw;
    *max = call.gpu->max_mw;
    return leave(&call, NVML_SUCCESS);
}

struct utilization {
    unsigned gpu, memory; /* percent */
};

int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *out) {
    struct call call;
    int error = enter_gpu(&call, handle, USE);
    if (error) return error;
    out->gpu = out->memory = (unsigned)(call.gpu->load * 100);
    return leave(&call, NVML_SUCCESS);
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    struct call call;
    int error = enter_gpu(&call, handle, INFO);
    if (error) return error;
    *major = call.gpu->major;
    *minor = call.gpu->minor;
    return leave(&call, NVML_SUCCESS);
}

/* What can be set. */

int nvmlDeviceSetPowerManagementLimit(void *handle, unsigned limit_mw) {
    struct call call;
    int error = enter_gpu(&call, handle, SET_LIMIT);
    if (error) return error;
    if (limit_mw < call.gpu->min_mw || limit_mw > call.gpu->max_mw)
        return leave(&call, NVML_INVALID_ARGUMENT);
    settle(&call);
    call.gpu->limit_mw = limit_mw;
    off_t offset = (char *)call.gpu - (char *)&call.state;
    ssize_t written = pwrite(call.fd, call.gpu, sizeof *call.gpu, offset);
    return leave(&call, written == sizeof *call.gpu ? NVML_SUCCESS : NVML_DRIVER_NOT_LOADED);
}
