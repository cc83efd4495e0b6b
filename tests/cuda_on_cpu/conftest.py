from tests.cuda_on_cpu.fixtures import cuda_on_cpu  # noqa: F401
