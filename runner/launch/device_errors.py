"""What an error of a device means: that memory is missing, or that the device is of no more use."""

import re

__all__ = ["is_fatal", "is_out_of_memory"]

# What torch and the libraries below it say where no OutOfMemoryError comes. Each with its source.
NO_MEMORY = re.compile(
    "|".join(
        (
            # The allocator of another library, or of a second process, found nothing:
            r"(CUDA|HIP|XPU|XLA)( error)?:? out of memory",  # c10/cuda/CUDAException.cpp
            r"CUBLAS_STATUS_ALLOC_FAILED",  # aten/src/ATen/cuda/CublasHandlePool.cpp
            r"CU(DNN|SOLVER|SPARSE|FFT)_(STATUS_)?ALLOC_FAILED",  # ATen/cudnn, ATen/cuda
            r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",  # cuDNN 9
            r"(HIPBLAS|ROCBLAS)_STATUS_(ALLOC_FAILED|MEMORY_ERROR)",
            r"MPS backend out of memory",  # aten/src/ATen/mps/MPSAllocator.mm
            r"Invalid buffer size:",  # the same, for more than its buffers hold
            r"DefaultCPUAllocator: (can't allocate|not enough) memory",  # c10/core/alloc_cpu
        )
    ),
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether less memory, or the same call when others use less, would do."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and NO_MEMORY.search(str(error)) is not None


def is_fatal(error: BaseException) -> bool:
    """Whether the process can make no more images: an error of the device poisons every later call.
    Missing memory is an exception: the driver says no, and goes on."""
    import torch

    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)
