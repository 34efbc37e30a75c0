/* PNG and JPEG: every kind of file against what Pillow reads from it, round trips, and files that are cut off, flipped or lie about
 * their size. */
#include <unistd.h>

#include "pictures.h"

/* Small files, and the hashes (FNV-1a) of what Pillow's convert("RGB") and then convert("L") make of them. */
static const struct file {
    const char *name;
    int width, height;
    uint64_t rgb, grey;
    const char *hex;
} files[] = {
    {"grey1", 5, 3, 0xef528916ec4990ddu, 0xf61e85825cbb3f71u,
     "89504e470d0a1a0a0000000d4948445200000005000000030100000000734df8550000000e4944415478da63b8c070812100"
     "0006d601f17eac64410000000049454e44ae426082"},
    {"grey2", 5, 3, 0x91b6666fa969366eu, 0x86453092a7dcb118u,
     "89504e470d0a1a0a0000000d494844520000000500000003020000000034ed8285000000114944415478da63903cc090efc0"
     "a0ed000009d201f4d72f9d790000000049454e44ae426082"},
    {"grey4", 5, 3, 0x4e6f034a6b2a4e81u, 0x6dd137534fb8ee55u,
     "89504e470d0a1a0a0000000d4948445200000005000000030400000000bbad7725000000144944415478da6308a83ac07079"
     "8e0343ec8c05001c9404cf9c4e5db00000000049454e44ae426082"},
    {"grey8", 5, 3, 0x56a310fc603fdb03u, 0xc742d05346f8283fu,
     "89504e470d0a1a0a0000000d49484452000000050000000308000000007e5d9a240000001b4944415478da6368fa7d805795"
     "a1fba2e0ba430c27ef1bf69d0500499a0881bd916f730000000049454e44ae426082"},
    {"grey16", 5, 3, 0x2fcd5109107b1ef5u, 0xb1ef94186d515ec5u,
     "89504e470d0a1a0a0000000d49484452000000050000000310000000002ecd46670000002a4944415478da63885e6af0ab6a"
     "bfc8038b40865b1f56bdbc537b9dfb410a837f7dc5f979fc6e1aaf130015751038f6a538c50000000049454e44ae426082"},
    {"grey2 interlaced", 10, 9, 0x81c293ca449792a6u, 0x65126a4504506bdcu,
     "89504e470d0a1a0a0000000d494844520000000a000000090200000001137acaf80000003b4944415478da63106008606800"
     "4206860d0c1f80b08c8141d081e1ba0343b503c3de030cab1a182e1e60d0fecfc030ffce04860b250b18a4bd1a007f1510c0"
     "5b1590a50000000049454e44ae426082"},
    {"grey8 transparent", 5, 3, 0x908f8f8e201d2b60u, 0x9ba21b0e2e391312u,
     "89504e470d0a1a0a0000000d49484452000000050000000308000000007e5d9a240000000274524e530040004f8ca8000000"
     "1a4944415478da63e8be6f74e83f83b09daaa33f83d053c7d7870141bf074a786be12e0000000049454e44ae426082"},
    {"rgb8", 5, 3, 0x4f8db4f8f7a875deu, 0x486f3f61677834dcu,
     "89504e470d0a1a0a0000000d4948445200000005000000030802000000d45452af0000003b4944415478da013000cfff002c"
     "b2c6202160116b7aaa927438967400d6b2b9925d4872925e251c0b346848002d50b650eb9323f8e1c628cab3c2b6d15e1518"
     "03117a910000000049454e44ae426082"},
    {"rgb16", 5, 3, 0x1396f125e0b1ea7eu, 0xcab4d933bb8a84f3u,
     "89504e470d0a1a0a0000000d494844520000000500000003100200000084c48eec000000684944415478da015d00a2ff0098"
     "d4576ceaedfb09b08b5baf80178f9913bb16bb7d0b8fd6367c438421f800ea9b818d4647c8fbf5814b85e5f2c4cecb40868f"
     "e9202628167ef7087d780066d1baed4b94a31cd8d4cda31fdcf818bbccb2c43015ec49647af0f63b5ddbba31345d78c0ec00"
     "00000049454e44ae426082"},
    {"rgb8 interlaced", 10, 9, 0x399478f4476af759u, 0xb76a68cba8c35dcbu,
     "89504e470d0a1a0a0000000d494844520000000a000000090802000001f3c31ad20000012c4944415478da012101defe0017"
     "d795d05cdd00261cebc7067500884f24009ecee600769296b3b7ffa089540002a0cef6330700cf27ab030b7200afa18908ab"
     "8300369b3c6c5cf3207275cb205f2463af008aa610076db8406223323761e8e2230063f9f9b1998565b2f0fcabc2a4a46100"
     "ceb7a1c264065ffb7a38248fca8f9a002803f382bc24466e222cbe3173fff5009b7408af2c28055c146a0d7651a7050077f5"
     "179d2008c976eab1de29103ef6005761b6800504317e99f8c74983bfe271b73575e76104c94d70ff63433bd9004bdc2fbb16"
     "9a404958c8ca408913e3f65c8a89c61187d79c8e08ec2f59ac0046f437cb58aba6d861f0e105191ea55c2717ea990842a843"
     "c349a119cfbd0092d3c90f461780f6ccc0c056fa212263765678df776ba315e4ed059ffe1d5914838da487eafe0000000049"
     "454e44ae426082"},
    {"rgb8 transparent", 5, 3, 0x29468f38d27c7743u, 0x806bab402cc73a08u,
     "89504e470d0a1a0a0000000d4948445200000005000000030802000000d45452af0000000674524e53000100020003c94bab"
     "f50000003b4944415478da013000cfff0068a5f4f21659fec16b10a52ae84672008c7d8ece7f566ccb9376f74175f5d60093"
     "0e8e62f78f939e68408266d4f277565819132f4cde750000000049454e44ae426082"},
    {"rgb8 gamma", 5, 3, 0x66d6b872fecdebc2u, 0xf70296704119e1a5u,
     "89504e470d0a1a0a0000000d4948445200000005000000030802000000d45452af0000000467414d41000186a031e8965f00"
     "00003b4944415478da013000cfff00a631952710340ddd36e923abfb1c0000485d7c0e11a3160b621125147c45d4009355ce"
     "3344234868d35cbed820bace7fc11178ed57766f0000000049454e44ae426082"},
    {"palette1", 5, 3, 0xb0813cc5d137a2b4u, 0x2dbe12b67bc7200eu,
     "89504e470d0a1a0a0000000d494844520000000500000003010300000061f857bb00000030504c54457983c1f30824d2f23f"
     "4fde6c45d34168a48c1507ddc0d689d15473c91f4d1f74fa226267e734804305c00f477f7c1dfb0d14a4670000000e494441"
     "5478da63486098c020000003a60101420b89b60000000049454e44ae426082"},
    {"palette2", 5, 3, 0xcf21f6b0a33cb2c0u, 0x354e6b057773b0beu,
     "89504e470d0a1a0a0000000d494844520000000500000003020300000026582d6b00000030504c54457983c1f30824d2f23f"
     "4fde6c45d34168a48c1507ddc0d689d15473c91f4d1f74fa226267e734804305c00f477f7c1dfb0d14a46700000011494441"
     "5478da63886660a83dc070cb01000a4602b34abc3e6c0000000049454e44ae426082"},
    {"palette4", 5, 3, 0x7e7878017afa007eu, 0x3109710493ca9572u,
     "89504e470d0a1a0a0000000d4948445200000005000000030403000000a918d8cb00000030504c54457983c1f30824d2f23f"
     "4fde6c45d34168a48c1507ddc0d689d15473c91f4d1f74fa226267e734804305c00f477f7c1dfb0d14a46700000014494441"
     "5478da63302adfc0903ebb8041a177020017b504096239e3f50000000049454e44ae426082"},
    {"palette8", 5, 3, 0x527eb24c951bb741u, 0xf8c8ad9761aed750u,
     "89504e470d0a1a0a0000000d49484452000000050000000308030000006ce835ca00000030504c54457983c1f30824d2f23f"
     "4fde6c45d34168a48c1507ddc0d689d15473c91f4d1f74fa226267e734804305c00f477f7c1dfb0d14a4670000001a494441"
     "5478da636060e465e16560e263e2626760626567660700033b005b4942aa000000000049454e44ae426082"},
    {"palette4 transparent", 5, 3, 0x632d2f63fc9e50f7u, 0x7f698604067e33c4u,
     "89504e470d0a1a0a0000000d4948445200000005000000030403000000a918d8cb00000030504c54457983c1f30824d2f23f"
     "4fde6c45d34168a48c1507ddc0d689d15473c91f4d1f74fa226267e734804305c00f477f7c1dfb0d14a4670000000374524e"
     "530080ffecf7b318000000144944415478da6390fa56c0b0ce2880e187d807001a3804aff3e067cd0000000049454e44ae42"
     "6082"},
    {"grey alpha8", 5, 3, 0x033e841651d9eff3u, 0xb62a681f85843c77u,
     "89504e470d0a1a0a0000000d4948445200000005000000030804000000f13f0d730000002a4944415478da6390b7fecebba1"
     "e3eaab681f868fb3ceb3ffca335a56b58721c97bee2b8745929a55fc0001870eb5179663cd0000000049454e44ae426082"},
    {"rgba8", 5, 3, 0x2e125be70e14772au, 0xa3ad23d61d6c561bu,
     "89504e470d0a1a0a0000000d49484452000000050000000308060000005b36c5f80000004a4944415478da013f00c0ff00a3"
     "9462c0fcec679a4c16d067776945b34905f2b500f6d5a5fd4728b6af37fc52fa8a2e6621598df9f7002bac9d60098d17d035"
     "c6fd7db968deb20c61ae7e139a208e5b507d970000000049454e44ae426082"},
    {"grey alpha16", 5, 3, 0x05eca81253038bceu, 0xd9197c2747618f2cu,
     "89504e470d0a1a0a0000000d4948445200000005000000031004000000a1afd1300000004a4944415478da013f00c0ff0070"
     "9f727d6a9a87beb55049904eed7f5283727dd60042beb73664339aec8888cc69286a28c246b4f8c7006b9f074e7906470dcc"
     "cd0554a49809908fffcccab8ec1e1b9b4a59b60000000049454e44ae426082"},
    {"rgba16", 5, 3, 0x89fa4d916f0769adu, 0x9413b500bbce4f23u,
     "89504e470d0a1a0a0000000d49484452000000050000000310060000000ba619bb000000864944415478da017b0084ff00de"
     "af1e71328528771aa5066964cb754c231ed6df8e54ca9c92da8a1a21b06423b74f3ee88e79a4e8006c55ff22eae09eebdb1d"
     "cb6938913e002aa51c74ea6066a028414ad2c1d85b46500194c15c766bb8008dc059e1ed0bb20f0086d01f298b89d9b85f3e"
     "ad64fbe79f49ad1e41f68064684397edb4b6d3b75be1943bc6b24227ab0000000049454e44ae426082"},
    {"rgba8 interlaced", 10, 9, 0x9c5ba0559beccb68u, 0x90b98c03deaa9f11u,
     "89504e470d0a1a0a0000000d494844520000000a0000000908060000017ca18d85000001864944415478da017b0184fe00f6"
     "13c39a43410591003395495379e34b3f00e3a0e76e0094cfd0b400c93780f94cbfa2681729d5b000ce57457a60be745b00e8"
     "90c1922c4912460038e49949191983110041b2bf9e5edc532bb14e89f5682e7c6b235c6c1e00bb9ed436fc2863d9d2bd5609"
     "59406267c56df3fe00b595b9b9a056cdb5e7af184de4f76b3d49a0c74b005ba4165cb77951d8e3d1bb9e782fdf2b883b6f21"
     "0039b018fd2d6dd2445bcc365613911101845a208600e56145657f2f2ef2b0db371b3cf808b93932291a009beed60487f971"
     "07377b7fbaca7aff3b94a15fd20005932a9f4fda88ad5c6ae192351b8fd2c70dedb3dffc220ccaf8acda6be506192b4cbf4f"
     "15eb50ee0099a97f3a69daaf0e549e9b06ba1121ac53adf152f795fec90a55d3c7efd8e602b73faccdb8e0936f0086828a8a"
     "7f1934146f97de6662f98161eea23bd4b9257b8ac96a5c968a8f5e33dde1ea11a152fba5005838158aa6d25e468f85e782dc"
     "16eb67ef1e968d803e09231a988668db606e0e00f2362ec2d5288c78d4b421ab4c4aab0000000049454e44ae426082"},
    {"jpeg", 21, 19, 0x86f6d39e56ae690du, 0x3384ef70565cff1cu,
     "ffd8ffe000104a46494600010100000100010000ffdb004300080606070605080707070909080a0c140d0c0b0b0c1912130f"
     "141d1a1f1e1d1a1c1c20242e2720222c231c1c2837292c30313434341f27393d38323c2e333432ffdb0043010909090c0b0c"
     "180d0d1832211c21323232323232323232323232323232323232323232323232323232323232323232323232323232323232"
     "3232323232323232ffc00011080013001503012200021101031101ffc4001800010101010100000000000000000000000006"
     "070405ffc4002110000104030001050000000000000000000001020311040522321321233151ffc400190100020301000000"
     "000000000000000000060700010405ffc400201100010402010500000000000000000000010002030511122104143151b1ff"
     "da000c03010002110311003f00ca30f4f75c94187a4bae4a0c0d3dd7253e0692eb939d03bb852a6e718e54a41a1f8fc01a43"
     "3591c2d46b98aabf889f40b90f431b8b2490023ca3b8ae5c5830bccd7451fb7285561c6c6c2e72352d1aaa8018ab0910b88f"
     "47e246d59390bbb1618fd2f040003b101a04c28dc751caffd9"},
    {"jpeg grey", 21, 19, 0x923949ed25568dedu, 0x41b43b7701270b8du,
     "ffd8ffe000104a46494600010100000100010000ffdb004300080606070605080707070909080a0c140d0c0b0b0c1912130f"
     "141d1a1f1e1d1a1c1c20242e2720222c231c1c2837292c30313434341f27393d38323c2e333432ffc0000b08001300150101"
     "1100ffc4001800000203000000000000000000000000000506030407ffc40021100000060201050000000000000000000000"
     "01020305110422321321233151ffda0008010100003f00ca30e1eeb50c1870975a838c40f8f8093021eeb50cf810975a83a8"
     "8c6d9492548333f845e80c8e69beda906ac36d09654a2495924cc85ec565be97021fffd9"},
    {"jpeg progressive", 21, 19, 0x590464ad13905377u, 0x50dc4549dfa3f61au,
     "ffd8ffe000104a46494600010100000100010000ffdb0043000d090a0b0a080d0b0a0b0e0e0d0f13201513121213271c1e17"
     "202e2931302e292d2c333a4a3e333646372c2d405741464c4e525352323e5a615a50604a51524fffdb0043010e0e0e131113"
     "261515264f352d354f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f"
     "4f4f4f4f4f4f4f4fffc20011080013001503012200021101031101ffc4001700010101010000000000000000000000000004"
     "0305ffc400190100020301000000000000000000000000030500010406ffda000c03010002100310000001e2555581913acb"
     "678da0f9ad0636bfffc4001a100002020300000000000000000000000000020103111231ffda00080101000105025416b22b"
     "1505acd7028bc883ffc4001811010003010000000000000000000000000001030421ffda0008010301013f01a34234714a1f"
     "ffc4001c1100020007000000000000000000000000000102031113223132ffda0008010201013f018721db4e8d9279168fff"
     "c40014100100000000000000000000000000000030ffda0008010100063f021fffc4001c1000020105010000000000000000"
     "000000000131101121416151ffda0008010100013f211e0618a7c84ba0abc11055a0ffda000c030100020003000000100800"
     "7fffc40017110101010100000000000000000000000001110021ffda0008010301013f1084ee68cda64cdfffc40017110101"
     "010100000000000000000000000001001161ffda0008010201013f1075e61b244f2262ffc4001b1001000301000300000000"
     "0000000000000100112131104161ffda0008010100013f10e39387845b593840d4a5f84cd882481613d5a7ffd9"},
    {"jpeg cmyk", 21, 19, 0x1b28ffef8c3be332u, 0x583a0c93b4313930u,
     "ffd8ffee000e41646f626500640000000000ffdb004300080606070605080707070909080a0c140d0c0b0b0c1912130f141d"
     "1a1f1e1d1a1c1c20242e2720222c231c1c2837292c30313434341f27393d38323c2e333432ffc00014080013001504431100"
     "4d11005911004b1100ffc40017000101010100000000000000000000000007000508ffc40029100000030507050101000000"
     "00000000000001020304050611121316214263a114223134533241ffda000e0443004d0059004b00003f002996f402cc31b7"
     "c00b7474bfa641fc304b7a058636f81b8e92e5fd3b38105784fa82c31b7c0da63235e22b75c087244b7a034e18dbe062cb8e"
     "97f632106096f40b0c6df01725c972fec767020af09f5058636f81b11e99259931e99c39fd93dbdbe1a096d1939334acd891"
     "fe6dda52488cc8ea4599d333a119561c912de809fd331f990219252955dd4abe041825bd02e998fcc83abb365c3a4d8c3fba"
     "19337a7587b76cc576495656966a349d0f23a19179105784fa82e998fcc80b4bee6ee70f2ab14ff043ffd9"},
    {"jpeg 4:4:4 rotated", 21, 19, 0x2af451d24e802f88u, 0xb117dc7fd81e9816u,
     "ffd8ffe000104a46494600010100000100010000ffe100224578696600004d4d002a00000008000101120003000000010006"
     "000000000000ffdb004300080606070605080707070909080a0c140d0c0b0b0c1912130f141d1a1f1e1d1a1c1c20242e2720"
     "222c231c1c2837292c30313434341f27393d38323c2e333432ffdb0043010909090c0b0c180d0d1832211c21323232323232"
     "3232323232323232323232323232323232323232323232323232323232323232323232323232323232323232ffc000110800"
     "13001503011100021101031101ffc4001800000203000000000000000000000000000506030407ffc4002110000006020105"
     "000000000000000000000001020305110422321321233151ffc4001901010003010100000000000000000000000602040701"
     "05ffc400231100010402000603000000000000000000010002030411120521314161711422f0ffda000c0301000211031100"
     "3f00ca30e1eeb5144cbb2ed3b89830e12eb5112cd928a777ca38c40f8f808fc5ca4b05efaf5526043dd6a28d7976584d5b89"
     "9f0212eb51ed5766c9255bbe51d44636ca492a4199fc22f421738ad4a2f114992eee060e3de48ebfbb24b5acb9ccc8286473"
     "4df6d4819a24f258bd6714d586da12ca94492b2499904c64745564919c886923d80522a6e25c0157b1596fa5c0804aed1a25"
     "d0bddaf55fffd9"},
};
enum { FILES = sizeof files / sizeof *files };

static size_t bytes_of(uint8_t **bytes, const struct file *f) {
    const size_t n = strlen(f->hex) / 2;
    *bytes = new_bytes(n);
    for (size_t i = 0; i < n; i++) {
        const char digits[3] = {f->hex[2 * i], f->hex[2 * i + 1], 0};
        (*bytes)[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return n;
}

static int is_jpeg(const struct file *f) { return strncmp(f->name, "jpeg", 4) == 0; }

static void test_kinds(void **state) {
    (void)state;
    mhla_image image = {0};
    for (int i = 0; i < FILES; i++) {
        const struct file *f = &files[i];
        uint8_t *bytes;
        const size_t n = bytes_of(&bytes, f), pixels = (size_t)f->width * (size_t)f->height;
        int w, h, c;
        ASSERT_OK(mhla_image_probe(&w, &h, &c, bytes, n, f->name));
        assert_int_equal(w, f->width);
        assert_int_equal(h, f->height);
        ASSERT_OK(mhla_image_decode(&image, bytes, n, 3, f->name));
        if (image.channels != 3 || fnv(image.data, 3 * pixels) != f->rgb) fail_msg("%s: other pixels", f->name);
        ASSERT_OK(mhla_image_decode(&image, bytes, n, 1, f->name));
        if (image.channels != 1 || fnv(image.data, pixels) != f->grey) fail_msg("%s: other grey pixels", f->name);
        ASSERT_OK(mhla_image_decode(&image, bytes, n, 0, f->name));
        assert_int_equal(image.channels, c);
        free(bytes);
    }
    mhla_image_free(&image);
}

static void test_png_round_trip(void **state) {
    (void)state;
    static const int sizes[][2] = {{1, 1}, {3, 1}, {1, 300}, {33, 17}};
    for (size_t s = 0; s < 4; s++)
        for (int c = 1; c <= 3; c += 2) {
            mhla_image m = picture(sizes[s][0], sizes[s][1], c), back = {0};
            uint8_t *bytes;
            size_t n;
            const mhla_image_text texts[] = {{"Title", "a test"}, {"Comment", "gr\xc3\xbc\xc3\x9f"}};
            ASSERT_OK(mhla_image_encode_png(&bytes, &n, &m, texts, 2));
            assert_non_null(memmem(bytes, n, "tEXtTitle\0a test", 16));
            assert_non_null(memmem(bytes, n, "iTXtComment\0", 12));
            ASSERT_OK(mhla_image_decode(&back, bytes, n, 0, "memory"));
            assert_int_equal(back.channels, c);
            assert_memory_equal(back.data, m.data, (size_t)(m.width * m.height * c));
            free(bytes);
            mhla_image_free(&m);
            mhla_image_free(&back);
        }
    mhla_image m = picture(2, 2, 1);
    uint8_t *bytes;
    size_t n;
    ASSERT_FAILS(mhla_image_encode_png(&bytes, &n, &m, &(mhla_image_text){"", "x"}, 1), MHLA_EINVAL, "1 to 79");
    mhla_image_free(&m);
}

static void test_jpeg_round_trip(void **state) {
    (void)state;
    for (int c = 1; c <= 3; c += 2) {
        mhla_image m = {0}, back = {0};
        ASSERT_OK(mhla_image_reserve(&m, 40, 24, c));
        for (int y = 0; y < 24; y++)
            for (int x = 0; x < 40 * c; x++) m.data[y * 40 * c + x] = (uint8_t)(40 + 3 * y + x / c);
        uint8_t *bytes;
        size_t n;
        ASSERT_OK(mhla_image_encode_jpeg(&bytes, &n, &m, 95));
        ASSERT_OK(mhla_image_decode(&back, bytes, n, 0, "memory"));
        assert_int_equal(back.channels, c);
        int worst = 0;
        for (int i = 0; i < 40 * 24 * c; i++)
            worst = abs(m.data[i] - back.data[i]) > worst ? abs(m.data[i] - back.data[i]) : worst;
        assert_true(worst <= 4);
        free(bytes);
        ASSERT_FAILS(mhla_image_encode_jpeg(&bytes, &n, &m, 0), MHLA_EINVAL, "quality is 0");
        mhla_image_free(&m);
        mhla_image_free(&back);
    }
}

/* Every beginning of every file: refused, or whole pixels of the right size (an end marker may be missing). */
static void test_cut_off(void **state) {
    (void)state;
    mhla_image image = {0};
    for (int i = 0; i < FILES; i++) {
        uint8_t *bytes;
        const size_t n = bytes_of(&bytes, &files[i]), pixels = (size_t)files[i].width * (size_t)files[i].height;
        int refused = 0;
        for (size_t cut = 0; cut < n; cut++) {
            uint8_t *part = new_bytes(cut); /* its own memory: reading past the end shows in the sanitizers */
            memcpy(part, bytes, cut);
            const mhla_status status = mhla_image_decode(&image, part, cut, 3, "cut.png");
            if (status == MHLA_OK) {
                if (fnv(image.data, 3 * pixels) != files[i].rgb && !is_jpeg(&files[i]))
                    fail_msg("%s cut at %zu", files[i].name, cut);
            } else {
                refused++;
                assert_int_equal(status, MHLA_EDATA);
                assert_ptr_equal(strstr(mhla_message(), "cut.png: "), mhla_message());
            }
            free(part);
        }
        assert_true(refused + 24 >= (int)n);
        free(bytes);
    }
    mhla_image_free(&image);
}

static void test_flipped(void **state) {
    (void)state;
    mhla_image image = {0};
    rng r = {5};
    for (int i = 0; i < FILES; i++) {
        uint8_t *bytes;
        const size_t n = bytes_of(&bytes, &files[i]);
        for (int round = 0; round < 300; round++) {
            const int at = rng_below(&r, (int)n), bit = rng_below(&r, 8);
            bytes[at] ^= (uint8_t)(1 << bit);
            const mhla_status status = mhla_image_decode(&image, bytes, n, rng_below(&r, 2) * 3, "flipped");
            assert_true(status == MHLA_OK || status == MHLA_EDATA);
            bytes[at] ^= (uint8_t)(1 << bit);
        }
        free(bytes);
    }
    mhla_image_free(&image);
}

static uint32_t crc(const uint8_t *x, size_t n) {
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        c ^= x[i];
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
    }
    return ~c;
}

static void test_lies(void **state) {
    (void)state;
    mhla_image image = {0};
    uint8_t *bytes;
    size_t n = bytes_of(&bytes, &files[7]); /* rgb8 */
    static const struct {
        uint32_t width, height;
        const char *text;
    } lies[] = {{20000, 4000, "cannot hold"},
                {50000, 50000, "more than the"},
                {0x7fffffff, 0x7fffffff, "more than the"},
                {0, 5, ""}};
    for (size_t i = 0; i < 4; i++) {
        for (int k = 0; k < 4; k++) {
            bytes[16 + k] = (uint8_t)(lies[i].width >> (24 - 8 * k));
            bytes[20 + k] = (uint8_t)(lies[i].height >> (24 - 8 * k));
        }
        const uint32_t sum = crc(bytes + 12, 17);
        for (int k = 0; k < 4; k++) bytes[29 + k] = (uint8_t)(sum >> (24 - 8 * k));
        ASSERT_FAILS(mhla_image_decode(&image, bytes, n, 3, "lie.png"), MHLA_EDATA,
                     i == 2 ? "lie.png: " : lies[i].text);
    }
    free(bytes);
    n = bytes_of(&bytes, &files[22]); /* jpeg */
    uint8_t *sof = memmem(bytes, n, "\xff\xc0\x00\x11\x08", 5);
    assert_non_null(sof);
    memcpy(sof + 5, "\x20\x00\x20\x00", 4);
    ASSERT_FAILS(mhla_image_decode(&image, bytes, n, 3, "lie.jpg"), MHLA_EDATA, "8192 x 8192 pixels, which its");
    memcpy(sof + 5, "\xff\xdc\xff\xdc", 4);
    ASSERT_FAILS(mhla_image_decode(&image, bytes, n, 3, "lie.jpg"), MHLA_EDATA, "more than the");
    free(bytes);
    ASSERT_FAILS(mhla_image_decode(&image, "", 0, 3, "none"), MHLA_EDATA, "none: the file is empty");
    ASSERT_FAILS(mhla_image_decode(&image, "GIF89a", 6, 3, "x.gif"), MHLA_EDATA, "neither PNG nor JPEG");
    ASSERT_FAILS(mhla_image_decode(&image, "GIF89a", 6, 2, "x.gif"), MHLA_EINVAL, "channels is 2");
    ASSERT_FAILS(mhla_image_reserve(&image, 100000, 100000, 3), MHLA_EINVAL, "more than");
    mhla_image_free(&image);
}

static void test_files(void **state) {
    (void)state;
    char folder[] = "/tmp/mhla-image-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    mhla_image m = picture(9, 7, 3), back = {0};
    static const char *const names[] = {"a.png", "b.JPG", "c.jpeg"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        ASSERT_OK(mhla_image_write(path, &m));
        ASSERT_OK(mhla_image_read(&back, path, 0));
        assert_int_equal(back.width, 9);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/d.gif", folder);
    ASSERT_FAILS(mhla_image_write(path, &m), MHLA_EINVAL, ".png, .jpg or .jpeg");
    ASSERT_FAILS(mhla_image_read(&back, path, 0), MHLA_EIO, "d.gif: No such file");
    assert_int_equal(mhla_image_name("x.JPEG"), 1);
    assert_int_equal(mhla_image_name("png"), 0);
    assert_int_equal(rmdir(folder), 0);
    mhla_image_free(&m);
    mhla_image_free(&back);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),   cmocka_unit_test(test_png_round_trip), cmocka_unit_test(test_jpeg_round_trip),
        cmocka_unit_test(test_cut_off), cmocka_unit_test(test_flipped),        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
