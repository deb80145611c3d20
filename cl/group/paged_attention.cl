// SPDX-License-Identifier: Apache-2.0
#error "paged_attention has no kernel in the group set yet"
