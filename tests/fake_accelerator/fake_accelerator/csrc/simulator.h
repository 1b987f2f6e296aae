// The Python object that queues the device's work, see streams.py, and how C++ calls it.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

namespace fake_accelerator {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

inline PyObject* simulator = nullptr;

template <typename Result = void, typename... Arguments>
Result call(const char* method, Arguments&&... arguments) {
  py::gil_scoped_acquire held;
  py::error_scope kept;  // memory may be freed while an exception is being raised
  auto result = py::reinterpret_borrow<py::object>(simulator).attr(method)(std::forward<Arguments>(arguments)...);
  if constexpr (!std::is_void_v<Result>) return result.template cast<Result>();
}

// The memory of a tensor of the device, as a tensor of the host.
inline at::Tensor host_view(const at::Tensor& tensor) {
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  auto* begin = static_cast<char*>(tensor.storage().data_ptr().get());
  auto offset = tensor.storage_offset() * tensor.dtype().itemsize();
  return at::from_blob(begin + offset, tensor.sizes(), tensor.strides(), options);
}

}  // namespace fake_accelerator
