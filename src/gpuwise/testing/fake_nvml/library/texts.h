/* Texts a card may be told to say; bytes that are not printable are written as %XX. */
TEXT(name) TEXT(uuid) TEXT(serial) TEXT(vbios) TEXT(board_part_number) TEXT(inforom) TEXT(gsp_version)
