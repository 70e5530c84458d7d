"""A loop without end on a GPU of the fake driver, to be signalled. Argument: its NVML index."""

import signal
import sys
import time

from zeus_lightning import PowerLimit

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored under a shell's `&`
    options = {"step_w": 100, "warmup_steps": 2, "profile_steps": 4, "min_seconds": 0.1}
    with PowerLimit(batch_size=8, search="sweep", meter=f"nvml:{sys.argv[1]}", **options) as power:
        printed = False
        while True:
            time.sleep(0.01)
            power.step()
            if power.profiled and not printed:
                printed = True
                print("training", flush=True)
