#pragma once

namespace ds {

// physical cores that this process may run on; hyper-threads only slow matrix products down
int physical_cores();

} // namespace ds
