/* What a card may be told to say, one name a line; the controller reads this list. Shares are 0 to 1, units are SI. A name
   that the state file does not give is not supported by the card. */
/* identity */
NUMBER(compute_capability_major) NUMBER(compute_capability_minor) NUMBER(architecture) NUMBER(brand) NUMBER(n_cores)
NUMBER(memory_bus_bits) NUMBER(minor) NUMBER(board_id) NUMBER(module_id) NUMBER(numa_node) NUMBER(multi_gpu_board)
NUMBER(pci_domain) NUMBER(pci_bus) NUMBER(pci_device) NUMBER(pci_device_id) NUMBER(pci_subsystem_id) NUMBER(bus_type)
NUMBER(gsp_mode) NUMBER(virtualization_mode) NUMBER(power_source)
/* memory */
NUMBER(memory_total_bytes) NUMBER(memory_reserved_bytes) NUMBER(memory_used_bytes) NUMBER(bar1_total_bytes) NUMBER(bar1_used_bytes)
/* power and temperature */
NUMBER(power_w) NUMBER(power_limit_w) NUMBER(power_limit_default_w) NUMBER(power_limit_min_w) NUMBER(power_limit_max_w)
NUMBER(power_limit_enforced_w) NUMBER(energy_j) NUMBER(temperature_c) NUMBER(memory_temperature_c) NUMBER(temperature_slowdown_c)
NUMBER(temperature_shutdown_c) NUMBER(temperature_max_c) NUMBER(memory_temperature_max_c) NUMBER(temperature_margin)
NUMBER(temperature_target_c) NUMBER(temperature_target_min_c) NUMBER(temperature_target_max_c) NUMBER(n_fans) NUMBER(fan) NUMBER(fan_rpm) NUMBER(fan_min) NUMBER(fan_max)
/* clocks */
NUMBER(sm_clock_hz) NUMBER(graphics_clock_hz) NUMBER(memory_clock_hz) NUMBER(video_clock_hz) NUMBER(sm_clock_max_hz)
NUMBER(memory_clock_max_hz) NUMBER(video_clock_max_hz) NUMBER(sm_clock_application_hz) NUMBER(memory_clock_application_hz)
NUMBER(performance_state) NUMBER(event_reasons) NUMBER(event_reasons_supported)
NUMBER(held_sw_power_cap_s) NUMBER(held_sync_boost_s) NUMBER(held_sw_thermal_s) NUMBER(held_hw_thermal_s)
NUMBER(held_hw_power_brake_s) NUMBER(held_board_limit_s) NUMBER(held_reliability_s) NUMBER(held_low_utilization_s)
/* use */
NUMBER(utilization) NUMBER(memory_utilization) NUMBER(encoder_utilization) NUMBER(decoder_utilization) NUMBER(jpeg_utilization)
NUMBER(ofa_utilization) NUMBER(encoder_sessions) NUMBER(encoder_capacity)
/* PCIe */
NUMBER(pcie_generation) NUMBER(pcie_width) NUMBER(pcie_generation_max) NUMBER(pcie_generation_device_max) NUMBER(pcie_width_max)
NUMBER(pcie_replays) NUMBER(pcie_sent_bytes_per_s) NUMBER(pcie_received_bytes_per_s) NUMBER(pcie_correctable_errors)
/* NVLink */
NUMBER(n_nvlinks) NUMBER(nvlinks_active) NUMBER(nvlink_version) NUMBER(nvlink_bytes_per_s) NUMBER(nvlink_switch)
NUMBER(nvlink_sent_bytes) NUMBER(nvlink_received_bytes) NUMBER(nvlink_crc_errors) NUMBER(nvlink_replays) NUMBER(nvlink_recoveries)
/* modes */
NUMBER(persistence) NUMBER(compute_mode) NUMBER(display_mode) NUMBER(display_active) NUMBER(accounting) NUMBER(mig) NUMBER(mig_pending)
NUMBER(ecc) NUMBER(ecc_pending)
/* errors */
NUMBER(ecc_corrected) NUMBER(ecc_uncorrected) NUMBER(ecc_corrected_ever) NUMBER(ecc_uncorrected_ever)
NUMBER(remapped_rows_corrected) NUMBER(remapped_rows_uncorrected) NUMBER(remap_pending) NUMBER(remap_failed) NUMBER(remap_banks_max)
NUMBER(remap_banks_none) NUMBER(retired_pages_single) NUMBER(retired_pages_double) NUMBER(retired_pages_pending)
NUMBER(recovery_action) NUMBER(process_samples)
/* faults: NVML codes that every call gets */
NUMBER(lost)
