// Memory of the devices, and pinned memory of the host. New memory is filled with NaN.
#pragma once
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "simulator.h"

namespace fake_accelerator {

inline c10::DeviceIndex device_count = 8;
inline thread_local c10::DeviceIndex current_device = 0;
inline thread_local std::map<c10::DeviceIndex, c10::StreamId> current_streams;

struct Block {
  size_t size;
  c10::DeviceIndex device;  // -1: pinned memory of the host
  c10::StreamId stream;
};

inline std::mutex blocks_mutex;
inline std::map<void*, Block> blocks;
inline std::map<c10::DeviceIndex, int64_t> allocated_bytes, peak_bytes;

inline void release(void* address) {
  {
    std::lock_guard<std::mutex> lock(blocks_mutex);
    auto found = blocks.find(address);
    if (found == blocks.end()) return;
    blocks.erase(found);
  }
  std::free(address);
}

inline void free_block(void* address) {
  if (!address) return;
  Block block;
  {
    std::lock_guard<std::mutex> lock(blocks_mutex);
    block = blocks.at(address);
    // As in CUDA's allocator, what is freed no longer counts, also if queued work still uses it.
    allocated_bytes[block.device] -= static_cast<int64_t>(block.size);
  }
  // If queued work uses it, Python releases it after that work.
  if (Py_IsInitialized() && simulator &&
      call<bool>("freed", reinterpret_cast<intptr_t>(address), int(block.device), int64_t(block.stream)))
    return;
  release(address);
}

inline void* new_block(size_t size, c10::DeviceIndex device, c10::StreamId stream) {
  void* address = nullptr;
  TORCH_CHECK(!posix_memalign(&address, 64, (size + 63) / 64 * 64), "the fake accelerator is out of memory");
  std::memset(address, 0xFF, size);
  std::lock_guard<std::mutex> lock(blocks_mutex);
  blocks[address] = {size, device, stream};
  auto now = allocated_bytes[device] += static_cast<int64_t>(size);
  if (now > peak_bytes[device]) peak_bytes[device] = now;
  return address;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    c10::Device device(kDevice, current_device);
    if (!size) return {nullptr, nullptr, &free_block, device};
    auto stream = current_streams[current_device];
    auto limit = call<int64_t>("allocates", int(current_device), int64_t(stream));
    {
      std::lock_guard<std::mutex> lock(blocks_mutex);
      auto used = allocated_bytes[current_device];
      TORCH_CHECK_WITH(OutOfMemoryError, used + static_cast<int64_t>(size) <= limit, "fake accelerator out of memory. ",
                       "Tried to allocate ", size, " bytes; ", used, " of ", limit, " bytes are in use.");
    }
    auto* address = new_block(size, current_device, stream);
    return {address, address, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t size) const override {
    call("copy_bytes", reinterpret_cast<intptr_t>(to), reinterpret_cast<intptr_t>(from), int64_t(size));
  }
};
inline DeviceAllocator device_allocator;

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    c10::Device host(c10::DeviceType::CPU);
    if (!size) return {nullptr, nullptr, &free_block, host};
    auto* address = new_block(size, -1, 0);
    return {address, address, &free_block, host};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};
inline PinnedAllocator pinned_allocator;

inline bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(blocks_mutex);
  auto after = blocks.upper_bound(const_cast<void*>(address));
  if (after == blocks.begin()) return false;
  auto& [begin, block] = *std::prev(after);
  return block.device < 0 && static_cast<const char*>(address) < static_cast<char*>(begin) + block.size;
}

}  // namespace fake_accelerator
