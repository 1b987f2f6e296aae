// Streams, events, random generators and the other things that torch asks of a device.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"

namespace fake_accelerator {

inline std::atomic<c10::StreamId> last_stream{0};
inline std::atomic<int64_t> last_event{0};

inline void set_device(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count, "fake accelerator error: invalid device ordinal ", int(index));
  call("use_device", int(index));
  current_device = index;
}

// Its state is kept in Python, see rng.py: torch only wants an object.
struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(c10::DeviceIndex index) {
    device_ = c10::Device(kDevice, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return call<bool>("is_used", int(index)); }
  c10::DeviceIndex deviceCount() const override { return device_count; }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current_device, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device : std::exchange(current_device, index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static std::vector<at::Generator> generators = [] {
      std::vector<at::Generator> made;
      for (int each = 0; each < device_count; each++) made.push_back(at::make_generator<Generator>(each));
      return made;
    }();
    return generators.at(index < 0 ? current_device : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return at::make_generator<Generator>(index); }
  c10::Device getDeviceFromPtr(void*) const override { return c10::Device(kDevice, current_device); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    auto old_device = std::exchange(current_device, impl->device().index());
    auto memory = device_allocator.allocate(size);
    auto kept = std::min(size, impl->nbytes());
    if (kept)
      call("copy_bytes", reinterpret_cast<intptr_t>(memory.get()), reinterpret_cast<intptr_t>(impl->data_ptr().get()),
           int64_t(kept));
    impl->set_data_ptr_noswap(std::move(memory));
    impl->set_nbytes(size);
    current_device = old_device;
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : current_device; }
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDevice, index_of(device)), id);
  }

  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(kDevice, std::exchange(current_device, device.index()));
  }
  c10::Device getDevice() const override { return c10::Device(kDevice, current_device); }
  void setDevice(c10::Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }

  c10::Stream getStream(c10::Device device) const override { return stream(device, current_streams[index_of(device)]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, ++last_stream); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device(), std::exchange(current_streams[next.device_index()], next.id()));
  }
  bool queryStream(const c10::Stream& of) const override {
    return call<bool>("is_idle", int(of.device_index()), int64_t(of.id()));
  }
  void synchronizeStream(const c10::Stream& of) const override {
    call("synchronize", int(of.device_index()), int64_t(of.id()), "stream.synchronize");
  }
  void synchronizeDevice(c10::DeviceIndex index) const override { call("synchronize", int(index), -1, "synchronize"); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& on) const override {
    call("record_stream", reinterpret_cast<intptr_t>(memory.get()), int(on.device_index()), int64_t(on.id()));
  }

  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = reinterpret_cast<void*>(++last_event);
    call("record_event", number_of(*event), int(on.device_index()), int64_t(on.id()));
  }
  void block(void* event, const c10::Stream& on) const override {
    if (event) call("wait_event", number_of(event), int(on.device_index()), int64_t(on.id()));
  }
  bool queryEvent(void* event) const override { return !event || call<bool>("is_event_done", number_of(event)); }
  void synchronizeEvent(void* event) const override {
    if (event) call("synchronize_event", number_of(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event && Py_IsInitialized()) call("destroy_event", number_of(event));
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    return call<double>("elapsed_milliseconds", number_of(begin), number_of(end));
  }

 private:
  static int64_t number_of(void* event) { return reinterpret_cast<int64_t>(event); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace fake_accelerator
