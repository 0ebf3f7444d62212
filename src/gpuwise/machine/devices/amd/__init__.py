"""AMD devices through the amdgpu driver's files and through amdsmi."""
