/* The version of this tree, for `sluice version`, /version and the Server header. */
#ifndef SLUICE_BASE_VERSION_H
#define SLUICE_BASE_VERSION_H

#define SLUICE_VERSION "0.1.0"

#endif
