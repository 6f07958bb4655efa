//! Random generators of other libraries, reproduced bit for bit.
