/* A stand-in for AMD's libamd_smi.so, for the calls this project makes.
 *
 * Its GPUs are those of fake_nvml.c, in the same file of state: the same load, power, limits and
 * errors, shown as AMD SMI shows them. The structs are those of amdsmi 7.0 (amdsmi_wrapper.py).
 */
#include "../fake_nvml/fake_nvml.c"

#include <stdio.h>

#pragma GCC visibility push(default)

enum {
    AMDSMI_SUCCESS = 0,
    AMDSMI_INVAL = 1,
    AMDSMI_NOT_SUPPORTED = 2,
    AMDSMI_NO_PERM = 10,
    AMDSMI_NOT_INIT = 32,
    AMDSMI_DRIVER_NOT_LOADED = 34,
    AMDSMI_UNKNOWN = -1,
};

static int status_of(int error) {
    switch (error) {
        case NVML_SUCCESS: return AMDSMI_SUCCESS;
        case NVML_INVALID_ARGUMENT: return AMDSMI_INVAL;
        case NVML_NOT_SUPPORTED: return AMDSMI_NOT_SUPPORTED;
        case NVML_NO_PERMISSION: return AMDSMI_NO_PERM;
        case NVML_UNINITIALIZED: return AMDSMI_NOT_INIT;
        case NVML_DRIVER_NOT_LOADED: return AMDSMI_DRIVER_NOT_LOADED;
        default: return AMDSMI_UNKNOWN;
    }
}

/* Enter a call on a GPU; `out` is cleared. */
static int enter_amd(struct call *call, void *handle, enum kind kind, void *out, size_t size) {
    memset(out, 0, size);
    return status_of(enter_gpu(call, handle, kind));
}

int amdsmi_init(uint64_t flags) {
    (void)flags;
    return status_of(nvmlInitWithFlags(0));
}

int amdsmi_shut_down(void) { return status_of(nvmlShutdown()); }

/* One socket for all GPUs. */
int amdsmi_get_socket_handles(uint32_t *count, void **sockets) {
    *count = 1;
    if (sockets) sockets[0] = handles;
    return AMDSMI_SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **found) {
    (void)socket;
    unsigned gpus;
    int error = nvmlDeviceGetCount_v2(&gpus);
    if (error) return status_of(error);
    *count = gpus;
    for (unsigned index = 0; found && index < gpus; index++)
        found[index] = &handles[index + first_gpu()];
    return AMDSMI_SUCCESS;
}

/* AMD's UUIDs have no GPU- before them. */
int amdsmi_get_gpu_device_uuid(void *handle, uint32_t *size, char *out) {
    struct call call;
    int error = enter_amd(&call, handle, INFO, out, 1);
    if (error) return error;
    return leave(&call, status_of(write_string(out, *size, call.gpu->uuid + 4)));
}

struct asic {
    char market_name[256];
    uint32_t vendor_id;
    char vendor_name[256];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[256];
    uint32_t oam_id, compute_units, padding;
    uint64_t graphics_version;
    uint32_t subsystem_id, reserved[21];
} __attribute__((packed));

int amdsmi_get_gpu_asic_info(void *handle, struct asic *out) {
    memset(out, 0, sizeof *out);
    strcpy(out->vendor_name, "Fake AMD");
    return status_of(nvmlDeviceGetName(handle, out->market_name, sizeof out->market_name));
}

struct enumeration {
    uint32_t drm_render, drm_card, hsa_id, hip_id;
    char hip_uuid[256];
} __attribute__((packed));

/* HIP's UUID is GPU- and 16 letters; this one has the GPU's number in them. */
int amdsmi_get_gpu_enumeration_info(void *handle, struct enumeration *out) {
    struct call call;
    int error = enter_amd(&call, handle, INFO, out, sizeof *out);
    if (error) return error;
    out->hip_id = (uint32_t)((char *)handle - handles);
    snprintf(out->hip_uuid, sizeof out->hip_uuid, "GPU-%016x", out->hip_id + 0xfa4e0);
    return leave(&call, AMDSMI_SUCCESS);
}

int amdsmi_get_energy_count(void *handle, uint64_t *out, float *resolution_uj, uint64_t *time) {
    struct call call;
    int error = enter_amd(&call, handle, ENERGY, out, sizeof *out);
    if (error) return error;
    *resolution_uj = 15.259F; /* 2**-16 J, as of the MI series */
    *out = (uint64_t)(shown_j(&call) * 1e6 / (double)*resolution_uj);
    *time = (uint64_t)(call.now_s * 1e9);
    return leave(&call, AMDSMI_SUCCESS);
}

struct power {
    uint64_t socket;
    uint32_t current, average;
    uint64_t gfx_mv, soc_mv, mem_mv;
    uint32_t limit, padding;
    uint64_t reserved[18];
} __attribute__((packed));

int amdsmi_get_power_info(void *handle, struct power *out) {
    struct call call;
    int error = enter_amd(&call, handle, POWER, out, sizeof *out);
    if (error) return error;
    out->current = (uint32_t)(power_w(call.gpu, call.now_s) + 0.5);
    out->average = 0xFFFF;
    return leave(&call, AMDSMI_SUCCESS);
}

struct usage {
    uint32_t gfx, umc, mm, reserved[13];
};

int amdsmi_get_gpu_activity(void *handle, struct usage *out) {
    struct call call;
    int error = enter_amd(&call, handle, USE, out, sizeof *out);
    if (error) return error;
    out->gfx = (uint32_t)(call.gpu->load * 100);
    return leave(&call, AMDSMI_SUCCESS);
}

struct cap {
    uint64_t now_uw, default_uw, dpm, min_uw, max_uw, reserved[3];
};

int amdsmi_get_power_cap_info(void *handle, uint32_t sensor, struct cap *out) {
    (void)sensor;
    struct call call;
    int error = enter_amd(&call, handle, CONSTRAINTS, out, sizeof *out);
    if (error) return error;
    out->now_uw = call.gpu->limit_mw * 1000ULL;
    out->default_uw = call.gpu->default_mw * 1000ULL;
    out->min_uw = call.gpu->min_mw * 1000ULL;
    out->max_uw = call.gpu->max_mw * 1000ULL;
    return leave(&call, AMDSMI_SUCCESS);
}

int amdsmi_set_power_cap(void *handle, uint32_t sensor, uint64_t cap_uw) {
    (void)sensor;
    return status_of(nvmlDeviceSetPowerManagementLimit(handle, (unsigned)(cap_uw / 1000)));
}

int amdsmi_status_code_to_string(int status, const char **out) {
    (void)status;
    *out = "";
    return AMDSMI_SUCCESS;
}
