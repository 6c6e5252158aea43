#include "file.hpp"

#include "error.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

namespace ds {

static uint64_t page_size() {
    static const uint64_t size = sysconf(_SC_PAGESIZE);
    return size;
}

model_file::model_file(const char * path) : name(path) {
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fail("cannot open %s: %s", path, strerror(errno));
    }

    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        fail("cannot read %s: not a regular file", path);
    }
    n_bytes = st.st_size;
}

model_file::~model_file() {
    for (const byte_range & r : mapped) {
        munmap(base + r.first, r.last - r.first);
    }
    close(fd);
}

void model_file::map() {
    if (n_bytes == 0) {
        return;
    }
    void * addr = mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED) {
        fail("cannot map %s (%" PRIu64 " bytes): %s", name.c_str(), n_bytes, strerror(errno));
    }
    base   = (uint8_t *) addr;
    mapped = { { 0, (n_bytes + page_size() - 1) / page_size() * page_size() } };

    // advice only: a refusal costs nothing but time
    madvise(addr, n_bytes, MADV_WILLNEED);
}

void model_file::keep_only(std::vector<byte_range> ranges) {
    if (!base) {
        return;
    }
    for (byte_range & r : ranges) {
        r.first = r.first / page_size() * page_size();
        r.last  = (r.last + page_size() - 1) / page_size() * page_size();
    }
    std::sort(ranges.begin(), ranges.end(), [](const byte_range & a, const byte_range & b) { return a.first < b.first; });

    std::vector<byte_range> kept;
    for (const byte_range & r : ranges) {
        if (!kept.empty() && r.first <= kept.back().last) {
            kept.back().last = std::max(kept.back().last, r.last);
        } else if (r.first < r.last) {
            kept.push_back(r);
        }
    }

    const uint64_t end = mapped.empty() ? 0 : mapped.back().last;
    uint64_t       at  = 0;
    for (const byte_range & r : kept) {
        unmap(at, r.first);
        at = r.last;
    }
    unmap(at, end);
    mapped = std::move(kept);
}

void model_file::unmap(uint64_t first, uint64_t last) {
    if (first < last) {
        munmap(base + first, last - first);
    }
}

void model_file::read(void * dst, uint64_t offset, uint64_t n) const {
    uint8_t * p = (uint8_t *) dst;
    while (n > 0) {
        // Linux reads at most 2 GiB at once
        const ssize_t got = pread(fd, p, std::min<uint64_t>(n, 1u << 30), offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            fail("cannot read %s at %" PRIu64 ": %s", name.c_str(), offset, got == 0 ? "the file ends there" : strerror(errno));
        }
        p      += got;
        offset += got;
        n      -= got;
    }
}

} // namespace ds
