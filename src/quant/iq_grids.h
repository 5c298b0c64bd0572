/* The codebooks of the IQ formats, unpacked once. Private to src/quant. */
#ifndef SLUICE_QUANT_IQ_GRIDS_H
#define SLUICE_QUANT_IQ_GRIDS_H

#include <stdint.h>

struct iq_grids {
    int8_t iq2_xxs[256][8], iq2_xs[512][8], iq2_s[1024][8]; /* values 8, 25, 43 */
    int8_t iq1[2048][8];                                    /* -1, 0, 1 */
    int8_t iq3_xxs[256][4];                                 /* 4, 12, … 52, 62 */
    int8_t iq3_s[512][4];                                   /* 1, 3, … 15 */
};

const struct iq_grids *iq_grids(void);

#endif
