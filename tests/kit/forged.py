"""The keys that only Carrel may write, spelled out, each with a value that a user might forge."""

PROTECTED = {
    "carrel.dev/tier": "booked",
    "carrel.dev/devices": "GPU-0",
    "carrel.dev/user": "root",
    "carrel.dev/admitted": "2026-11-16T12:00:00Z abc",
    "carrel.dev/handed-over": "{}",
    "carrel.dev/runs-without-gpu": "this pod runs without a GPU: I say so",
    "carrel.dev/asked-for": '{"gpus": 8}',
    "carrel.dev/unlisted-spawner": "system:serviceaccount:mine:hub",
    "carrel.dev/hub-address": "root@lab.example",
    "carrel.dev/waits-until": "2026-11-16T12:00:00Z",
    "devices.carrel.dev/main": "GPU-0",
    "terminate-at": "2099-01-01T00:00:00Z",
    "gpu.scheduling/allocated": "0",
    "ALIYUN_COM_GPU_MEM_IDX": "0",
    "ALIYUN_COM_GPU_MEM_POD": "1",
    "ALIYUN_COM_GPU_MEM_DEV": "1",
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
    "ALIYUN_COM_GPU_MEM_ASSIGN_TIME": "1",
    "ALIYUN_GPU_ID": "0",
    "scheduler.framework.gpushare.allocation": "{}",
    "received-resource-type": "Fraction",
    "runai/shared-gpu-configmap": "x",
    "run.ai/reserve_for_gpu_index": "GPU-0",
}
PROTECTED_LABELS = {
    "gpu.scheduling/managed": "true",
    "gpu.scheduling/pod": "p",
    "runai-gpu-group": "g",
    "carrel.dev/handover": "bare",
}
