// The extension module. It is one translation unit, because torch's headers take most of the time to compile.
#include "operators.h"
#include "process_group.h"

namespace fake_accelerator {

intptr_t address_of(const at::Tensor& tensor) {
  return reinterpret_cast<intptr_t>(tensor.storage().data_ptr().get());
}

void start(py::object the_simulator, int devices) {
  static Hooks hooks;
  simulator = the_simulator.release().ptr();
  device_count = static_cast<c10::DeviceIndex>(devices);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kDevice, &device_allocator);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("start", &start);
  module.def("host_view", &host_view);
  module.def("address_of", &address_of);
  module.def("release", [](intptr_t address) { release(reinterpret_cast<void*>(address)); });
  module.def("current_device", [] { return int(current_device); });
  module.def("set_device", [](int index) { set_device(static_cast<c10::DeviceIndex>(index)); });
  module.def("current_stream", [](int index) { return int64_t(current_streams[static_cast<c10::DeviceIndex>(index)]); });
  module.def("allocated_bytes", [](int index) { return allocated_bytes[static_cast<c10::DeviceIndex>(index)]; });
  module.def("peak_bytes", [](int index) { return peak_bytes[static_cast<c10::DeviceIndex>(index)]; });
  module.def("reset_peak", [](int index) {
    auto device = static_cast<c10::DeviceIndex>(index);
    peak_bytes[device] = allocated_bytes[device];
  });
  module.def(
      "process_group",
      [](c10::intrusive_ptr<c10d::Backend> gloo) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<ProcessGroup>(std::move(gloo));
      },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace fake_accelerator
